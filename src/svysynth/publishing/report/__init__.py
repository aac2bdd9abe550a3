"""What people look at: tables in a terminal and in a workbook."""
