"""Metrics in the format of node_exporter's textfile collector."""

from dpfact_flower.machine.prometheus import Gauge, exposition, write_exposition

ROUND = Gauge("round", "Now.", [({"job": "j"}, 7)])


def test_the_text_is_prometheus_own():
    values = [({"job": "j", "site": "d"}, 3), ({"job": "j", "site": "e"}, 4.5)]
    assert exposition([ROUND, Gauge("replies", "Of a site.", values)]) == (
        '# HELP dpfact_round Now.\n# TYPE dpfact_round gauge\ndpfact_round{job="j"} 7\n'
        "# HELP dpfact_replies Of a site.\n# TYPE dpfact_replies gauge\n"
        'dpfact_replies{job="j",site="d"} 3\ndpfact_replies{job="j",site="e"} 4.5\n'
    )


def test_the_collector_is_another_user(tmp_path):
    path = tmp_path / "dpfact.prom"
    write_exposition(path, [ROUND])
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.read_text().endswith('dpfact_round{job="j"} 7\n')
