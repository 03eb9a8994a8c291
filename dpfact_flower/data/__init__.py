"""From EHR tables to one validated tensor a site."""
