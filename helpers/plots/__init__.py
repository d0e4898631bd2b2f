"""Plain data in, figures out. Imported lazily by whatever draws itself."""
