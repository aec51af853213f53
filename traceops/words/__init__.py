"""Every sentence a finding is told in, as templates: one text file for each family of rules."""
