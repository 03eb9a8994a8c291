"""Evaluate a finished run's result, and present the result in reports.

`membership` scores patients. `prevalence` counts the patients who have each phenotype, `prediction`
predicts outcomes, and `clinical` measures plausibility. `summarise` combines the results, and
`run_folder` stores the results. Reports, comparisons and surveys need only the run's files.
"""
