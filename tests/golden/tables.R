# Tables from R's `survey` package: what the scripts make.R of golden values share. They source this file.

suppressPackageStartupMessages(library(survey))
here <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)))

# One statistic of the records `inside`, in a domain, with its standard error. Neither is a filter: a subset of a design
# remembers the whole.
estimate <- function(design, domain, inside, statistic) {
  if (inherits(design, "svyrep.design")) design$variables$inside <- as.numeric(inside)
  else design <- update(design, inside = as.numeric(inside))
  own <- subset(design, domain)
  if (statistic == "mean" && !any(inside & domain)) return(c(NA, NA))
  result <- switch(statistic,
    count = svytotal(~inside, own),
    total = svytotal(~I(inside * y), own),
    mean = svymean(~y, subset(design, domain & inside)),
    proportion = svymean(~inside, own)
  )
  c(coef(result), SE(result))
}

# The same. R leaves replicates out in which nobody is left to average, and warns; such a standard error is missing here.
estimate_or_missing <- function(...) {
  discarded <- FALSE
  value <- withCallingHandlers(estimate(...), warning = function(w) {
    if (!grepl("discarded", conditionMessage(w))) return()
    discarded <<- TRUE
    invokeRestart("muffleWarning")
  })
  if (discarded) value[2] <- NA
  value
}

# Every cell, margin and total of the table by (a, b) in a domain; the first column of `by` varies fastest.
table_of <- function(design, data, domain = rep(TRUE, nrow(data)), by = c("a", "b")) {
  levels <- lapply(data[by], function(column) c("All", sort(unique(as.character(column)))))
  cells <- expand.grid(levels, stringsAsFactors = FALSE)
  found <- list()
  for (row in seq_len(nrow(cells))) {
    a <- cells$a[row]
    b <- cells$b[row]
    inside <- (a == "All" | data$a == a) & (b == "All" | data$b == b)
    for (statistic in c("count", "total", "mean", "proportion")) {
      value <- estimate_or_missing(design, domain, inside, statistic)
      found[[length(found) + 1]] <- data.frame(
        statistic = statistic, a = a, b = b, estimate = value[1], se = value[2], n = sum(inside & domain)
      )
    }
  }
  do.call(rbind, found)
}

# Numbers with 17 significant digits, so that a double survives the trip.
write_numbers <- function(data, file, quote = FALSE) {
  number <- vapply(data, is.numeric, logical(1))
  data[number] <- lapply(data[number], function(x) ifelse(is.na(x), "", sprintf("%.17g", x)))
  write.csv(data, file.path(here, file), row.names = FALSE, quote = quote)
}

write_versions <- function() {
  writeLines(c(R.version.string, paste("survey", packageVersion("survey"))), file.path(here, "versions.txt"))
}
