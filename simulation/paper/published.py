"""The paper's numbers, as printed: Ma et al., CIKM 2019, section Experimental Evaluation."""

AUC_BY_RANK: dict[int, dict[str, float]] = {
    10: {"cp-als": 0.7516, "trip": 0.7130, "paper": 0.7319, "paper-no-l21": 0.5189, "psgd": 0.7401},
    20: {"cp-als": 0.7573, "trip": 0.7596, "paper": 0.7751, "paper-no-l21": 0.6886, "psgd": 0.7763},
    30: {"cp-als": 0.7488, "trip": 0.7644, "paper": 0.7679, "paper-no-l21": 0.6977, "psgd": 0.7705},
    40: {"cp-als": 0.7603, "trip": 0.7574, "paper": 0.7737, "paper-no-l21": 0.7137, "psgd": 0.7756},
    50: {"cp-als": 0.7643, "trip": 0.7633, "paper": 0.7759, "paper-no-l21": 0.7212, "psgd": 0.7790},
    60: {"cp-als": 0.7648, "trip": 0.7588, "paper": 0.7758, "paper-no-l21": 0.7312, "psgd": 0.7763},
}
"""The table of predictive performance on MIMIC-III, with our names of the systems."""

TRAFFIC = {
    "paper-icu": {"trip": 175.26, "dpfact": 93.62},
    "paper-cms": {"trip": 183.72, "dpfact": 114.42},
    "paper-synthetic": {"trip": 9.77, "dpfact": 7.75},
}
"""Seconds at 15 MB/s, by our data set of the same size."""

TRAFFIC_BY_SITES = {
    "paper-icu": {1: 18.73, 5: 93.62, 10: 189.83},
    "paper-cms": {1: 22.89, 5: 114.42, 10: 228.83},
    "paper-synthetic": {1: 1.55, 5: 7.75, 10: 15.50},
}
"""Seconds of DPFact at 15 MB/s, by number of sites."""

RANK = 50
