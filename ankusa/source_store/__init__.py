"""Sources set up through the admin API: kept, validated, sealed, shown (spec 07 "Admin", `source_store`)."""
