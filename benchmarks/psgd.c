/* A joint P-SGD pass over given visits, three modes, as one writes it down in C: float32 rows padded
   to COLUMNS, projection onto non-negative values, with and without the elastic term. */
#include <stdint.h>

#define AHEAD 8

#define ROW(visit, mode) (stack + (long)rows[3 * (visit) + (mode)] * COLUMNS)
#define ANCHOR(visit, mode) (anchors + ((long)rows[3 * (visit) + (mode)] - patients) * COLUMNS)

#define BEGIN \
    for (long s = 0; s < visits; s++) { \
        float *restrict a = ROW(s, 0), *restrict b = ROW(s, 1), *restrict c = ROW(s, 2); \
        const float *ahead = ROW(s + AHEAD < visits ? s + AHEAD : s, 0); \
        for (int r = 0; r < COLUMNS; r += 16) __builtin_prefetch(ahead + r, 1); \
        float model = 0; \
        for (int r = 0; r < COLUMNS; r++) model += a[r] * (b[r] * c[r]); \
        const float step = eta * (model - counts[s]);

#define PROJECTED(value) ((value) < 0 ? 0 : (value))

void joint(float *stack, const int32_t *rows, const float *counts, long visits, float eta)
{
    BEGIN
        for (int r = 0; r < COLUMNS; r++) {
            const float x = a[r], y = b[r], z = c[r];
            const float u = x - step * (y * z), v = y - step * (x * z), w = z - step * (x * y);
            a[r] = PROJECTED(u), b[r] = PROJECTED(v), c[r] = PROJECTED(w);
        }
    }
}

void joint_elastic(float *stack, const float *anchors, long patients, const int32_t *rows,
                   const float *counts, long visits, float eta, float gamma)
{
    const float pull = eta * gamma, keep = 1 - pull;
    BEGIN
        const float *p = ANCHOR(s, 1), *q = ANCHOR(s, 2);
        for (int r = 0; r < COLUMNS; r++) {
            const float x = a[r], y = b[r], z = c[r];
            const float u = x - step * (y * z), v = keep * y + pull * p[r] - step * (x * z),
                        w = keep * z + pull * q[r] - step * (x * y);
            a[r] = PROJECTED(u), b[r] = PROJECTED(v), c[r] = PROJECTED(w);
        }
    }
}
