"""What people read: the two HTML reports, and tables in a terminal and in a workbook."""
