# A small SAS file made by haven, because no Python package writes the format. Run: Rscript make.R
suppressWarnings({
  library(haven)
  frame <- data.frame(
    salary = c(41000.5, 52000, 38000.25, 61000),
    weight = c(1.5, 2, 3, 2.5),
    region = c("North", "South", "North", "East"),
    field = c(1, 2, 2, 1)
  )
  write_sas(frame, "small.sas7bdat")
})
