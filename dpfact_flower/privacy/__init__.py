"""The one door: whatever leaves a site is bounded, perturbed and charged here."""
