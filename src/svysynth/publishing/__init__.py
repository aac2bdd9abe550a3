"""What goes out and what does not: folders, reports, verdict, verification."""
