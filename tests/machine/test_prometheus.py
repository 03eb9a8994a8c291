"""Metrics in the format of node_exporter's textfile collector."""

from dpfact_flower.machine.prometheus import Gauge, exposition, gauge, write_exposition


def test_the_text_is_prometheus_own():
    values = [({"site": 'a"b\\c\nd'}, 3), ({"site": "e"}, 4.5)]
    both = Gauge("replies_total", "Of a site.", values, "counter")
    assert exposition([gauge("round", "Now.", 7), both]) == (
        "# HELP dpfact_round Now.\n# TYPE dpfact_round gauge\ndpfact_round 7\n"
        "# HELP dpfact_replies_total Of a site.\n# TYPE dpfact_replies_total counter\n"
        'dpfact_replies_total{site="a\\"b\\\\c\\nd"} 3\ndpfact_replies_total{site="e"} 4.5\n'
    )


def test_the_collector_is_another_user(tmp_path):
    path = tmp_path / "dpfact.prom"
    write_exposition(path, [gauge("round", "Now.", 7)])
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.read_text().endswith("dpfact_round 7\n")
