# Golden values for tables of several confidential answers, from R's `survey` package.
#
#   Rscript tests/golden/answers/make.R
#
# reads surveys that come with the package, apistrat, apiclus2 (two stages, of which the first counts here) and nhanes, and
# writes, next to this script,
#   apistrat.csv, apiclus2.csv, nhanes.csv   the records; some answers are missing (NA)
#   jk1.csv        the records of apiclus2 with replicate weights (JK1), without fpc
#   values.csv     estimate, standard error, degrees of freedom and number of records of the rows of tables
#   versions.txt   the versions of R and of survey that did so
# The tests read these files; they never call R. Numbers have 17 significant digits.
#
# Columns: a is public; y (the outcome), x and z are amounts, z with missing answers; s is a category; u is yes or no, with
# missing answers. In nhanes u is high cholesterol, s the race, z the same as u as a number, and x the age group.

suppressPackageStartupMessages(library(survey))
options(survey.lonely.psu = "fail", survey.ultimate.cluster = TRUE)
here <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)))

columns <- c("design", "domain", "of", "by", "within", "statistic", "a", "s", "u", "estimate", "se", "df", "n")
row <- function(design, domain, of, by, within, statistic, a, s, u, estimate, se, df, n) {
  data.frame(design, domain, of, by, within, statistic, a, s, u, estimate = unname(estimate), se = unname(se), df, n)
}

# Whether a replicate leaves nobody: R then leaves the replicate out, and svysynth gives no standard error.
emptied <- function(d) inherits(d, "svyrep.design") && any(colSums(weights(d, "analysis")) == 0)
or_missing <- function(d, se) if (emptied(d)) NA else c(se)

tables <- function(name, whole, domain, inside) {
  data <- whole$variables
  # a subset of a calibrated design has the records outside too, where a missing answer would count
  for (of in c("z", "u")) whole$variables[[of]][is.na(data[[of]])] <- 0
  d <- if (domain == "") whole else subset(whole, inside)
  found <- list()
  add <- function(...) found[[length(found) + 1]] <<- row(name, domain, ...)
  a_levels <- c("All", sort(unique(as.character(data$a))))
  s_levels <- c("All", sort(unique(as.character(data$s))))
  u_levels <- c("All", sort(unique(as.character(data$u_level))))
  of_level <- function(column, level) if (level == "All") rep(TRUE, nrow(data)) else as.character(data[[column]]) == level
  part <- function(keep) subset(whole, inside & keep)
  size <- function(keep) sum(inside & keep)
  count <- function(keep, base) {
    base$variables$one <- as.numeric(keep[base$variables$number])
    svytotal(~one, base)
  }

  # means, totals and counts of a number, by a column; of those who answered
  for (case in list(c("x", "a"), c("z", "a"), c("u", "a"), c("y", "s"), c("x", "u"))) {
    of <- case[1]
    by <- case[2]
    y <- data[[of]]
    given <- !is.na(y)
    base <- part(given)
    df <- degf(base)
    for (level in list(a = a_levels, s = s_levels, u = u_levels)[[by]]) {
      keep <- of_level(if (by == "u") "u_level" else by, level)
      own <- part(keep & given)
      label <- function(column) if (column == by) level else "All"
      put <- function(statistic, estimate, se, df, n) add(of, by, "", statistic, label("a"), label("s"), label("u"), estimate, se, df, n)
      if (size(keep & given) == 0) next
      mean <- svymean(as.formula(paste0("~", of)), own)
      put("mean", coef(mean), or_missing(own, SE(mean)), df, size(keep & given))
      number <- count(keep, base)
      put("count", coef(number), SE(number), df, size(keep & given))
      total <- svytotal(as.formula(paste0("~", of)), own)
      put("total", coef(total), SE(total), df, size(keep & given))
      if (any(!given)) {
        asked <- part(keep)
        asked$variables$one <- as.numeric(given[asked$variables$number])
        share <- svymean(~one, asked)
        put("answered", coef(share), or_missing(asked, SE(share)), degf(part(TRUE)), size(keep))
      }
    }
  }

  # shares of the levels of a category, in each row: svyby(~factor, ~row, svymean)
  shares <- function(of, within) {
    df <- degf(d)
    all <- svymean(as.formula(paste0("~", of)), d)
    levels <- if (of == "s") s_levels[-1] else a_levels[-1]
    put <- function(level, other, estimate, se) {
      both <- setNames(c(level, other), c(of, within))
      keep <- of_level(of, level) & of_level(within, other)
      add("", "a s", within, "proportion", both[["a"]], both[["s"]], "All", estimate, se, df, size(keep))
    }
    for (place in seq_along(levels)) put(levels[place], "All", coef(all)[place], SE(all)[place])
    by <- svyby(as.formula(paste0("~", of)), as.formula(paste0("~", within)), d, svymean)
    for (line in seq_len(nrow(by))) {
      other <- as.character(by[[within]][line])
      own <- part(of_level(within, other))
      for (place in seq_along(levels)) {
        put(levels[place], other, by[line, 1 + place], or_missing(own, by[line, 1 + length(levels) + place]))
      }
    }
  }
  shares("s", "a")
  shares("a", "s")
  cells <- svymean(~interaction(a, s), d)
  place <- 0
  for (s in s_levels[-1]) for (a in a_levels[-1]) {
    place <- place + 1
    add("", "a s", "", "proportion", a, s, "All", coef(cells)[place], SE(cells)[place], degf(d), size(data$a == a & data$s == s))
  }

  # ratios, of those who answered both
  for (pair in list(c("y", "x"), c("z", "x"))) {
    given <- !is.na(data[[pair[1]]]) & !is.na(data[[pair[2]]])
    df <- degf(part(given))
    for (level in a_levels) {
      keep <- of_level("a", level) & given
      own <- part(keep)
      ratio <- svyratio(as.formula(paste0("~", pair[1])), as.formula(paste0("~", pair[2])), own)
      add("", "a", "", sprintf("ratio(%s, %s)", pair[1], pair[2]), level, "All", "All", coef(ratio), or_missing(own, SE(ratio)), df, size(keep))
    }
  }
  do.call(rbind, found)
}

data(api)
data(nhanes)
schools <- function(from) {
  data <- with(from, data.frame(
    a = as.character(awards), y = api00, x = api99, z = enroll, s = as.character(stype), u = as.character(sch.wide), w = pw
  ))
  data$z[seq_len(nrow(data)) %% 7 == 3] <- NA
  data$u[seq_len(nrow(data)) %% 11 == 5] <- NA
  data
}
write <- function(data, name) write.csv(format(data, digits = 17, trim = TRUE), file.path(here, name), row.names = FALSE, quote = FALSE)
strat <- data.frame(schools(apistrat), stratum = as.integer(apistrat$stype), fpc = apistrat$fpc)
clus <- data.frame(schools(apiclus2), psu = apiclus2$dnum, fpc = apiclus2$fpc1)
people <- with(nhanes, data.frame(
  a = RIAGENDR, y = as.integer(agecat), x = as.integer(agecat) + race, z = HI_CHOL, s = race, u = c("No", "Yes")[HI_CHOL + 1],
  w = WTMEC2YR, psu = SDMVPSU, stratum = SDMVSTRA
))
write(strat, "apistrat.csv")
write(clus, "apiclus2.csv")
write(people, "nhanes.csv")

# what R computes with: factors, a number for yes and no, and a level for no answer
prepared <- function(data) {
  data$number <- seq_len(nrow(data))
  data$u_level <- ifelse(is.na(data$u), "no answer", tolower(data$u))
  data$u <- as.numeric(data$u == "Yes")
  data$a <- factor(data$a)
  data$s <- factor(data$s)
  data
}
stratified <- svydesign(ids = ~1, strata = ~stratum, fpc = ~fpc, weights = ~w, data = prepared(strat))
clustered <- svydesign(ids = ~psu, fpc = ~fpc, weights = ~w, data = prepared(clus))
health <- svydesign(ids = ~psu, strata = ~stratum, weights = ~w, data = prepared(people), nest = TRUE)
replicated <- as.svrepdesign(svydesign(ids = ~psu, weights = ~w, data = prepared(clus)), type = "JK1", mse = TRUE)
weights <- weights(replicated, "analysis")
colnames(weights) <- paste0("r", seq_len(ncol(weights)))
write(data.frame(clus[c("a", "y", "x", "z", "s", "u", "w")], weights), "jk1.csv")
post <- postStratify(stratified, ~a, data.frame(a = c("No", "Yes"), Freq = c(2100, 4094)))

values <- rbind(
  tables("apistrat", stratified, "", TRUE), tables("apistrat", stratified, "y > 600", strat$y > 600),
  tables("apiclus2", clustered, "", TRUE), tables("apiclus2", clustered, "y > 600", clus$y > 600),
  tables("nhanes", health, "", TRUE), tables("nhanes", health, "y > 1", people$y > 1),
  tables("jk1", replicated, "", TRUE), tables("jk1", replicated, "y > 600", clus$y > 600),
  tables("post", post, "", TRUE)
)
for (column in c("estimate", "se")) values[[column]] <- ifelse(is.na(values[[column]]), "", sprintf("%.17g", values[[column]]))
write.csv(values[columns], file.path(here, "values.csv"), row.names = FALSE)
writeLines(c(R.version.string, paste("survey", packageVersion("survey"))), file.path(here, "versions.txt"))
