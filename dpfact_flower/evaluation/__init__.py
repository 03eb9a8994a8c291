"""Evaluate a finished run's result, and present the result in reports.

    model + SiteData -> membership -> phenotypes, prediction, clinical -> summarise
    summarise -> summary, tables: summary.json and phenotypes.json in a run_folder
    run_folder -> report, comparison, review, survey -> prose, plots, page: HTML pages

`membership` scores patients, and `phenotypes` counts the patients who have each phenotype. Reports,
comparisons and surveys need only the files in the run folder.
"""
