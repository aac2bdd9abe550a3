# Systematic sampling with unequal probabilities by R's package `sampling`: sizes, the random start and who is chosen.
suppressMessages(library(sampling))
sink("systematic.csv")
cat("case,size,start,share,chosen\n")
for (case in 1:4) {
  set.seed(case)
  count <- c(20, 60, 200, 500)[case]
  size <- c(5, 12, 40, 30)[case]
  measure <- rlnorm(count, sdlog = 0.4)
  set.seed(100 + case)
  chosen <- UPsystematic(inclusionprobabilities(measure, size))
  set.seed(100 + case)
  start <- runif(1)
  cat(sprintf("%d,%d,%.17g,%.17g,%d\n", case, size, start, measure / sum(measure), chosen), sep = "")
}
