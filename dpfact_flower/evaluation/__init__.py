"""Evaluate a finished run's result, and present the result in reports.

    model + SiteData -> membership -> prevalence, prediction, clinical -> summarise
    summarise -> summary, tables: summary.json and phenotypes.json in a run_folder
    run_folder -> model, finished_run -> report, comparison, review, survey: HTML pages

`membership` scores patients, and `prevalence` counts the patients who have each phenotype. Reports,
comparisons and surveys need only the files in the run folder.
"""
