"""Metrics in the format of node_exporter's textfile collector."""

from dpfact_flower.machine.prometheus import Gauge, exposition, write_exposition

ROUND = Gauge("round", "Now.", [({"job": "j"}, 7)])


def test_the_text_is_prometheus_own():
    values = [({"job": "j", "site": "d"}, 3), ({"job": "j", "site": "e"}, 4.5)]
    both = Gauge("replies_total", "Of a site.", values, "counter")
    assert exposition([ROUND, both]) == (
        '# HELP dpfact_round Now.\n# TYPE dpfact_round gauge\ndpfact_round{job="j"} 7\n'
        "# HELP dpfact_replies_total Of a site.\n# TYPE dpfact_replies_total counter\n"
        'dpfact_replies_total{job="j",site="d"} 3\ndpfact_replies_total{job="j",site="e"} 4.5\n'
    )


def test_the_collector_is_another_user(tmp_path):
    path = tmp_path / "dpfact.prom"
    write_exposition(path, [ROUND])
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.read_text().endswith('dpfact_round{job="j"} 7\n')
