//! Locates the times in a PromQL expression: its durations, and the numbers in it that are seconds or a rate.
//!
//! Every part of an expression has a power of time, which is the exponent of the second in its unit: 1 for seconds,
//! -1 for something per second, 0 for the rest. The power follows from the names of metrics (`_seconds`) and from
//! functions (`rate` subtracts 1). A number has no power of its own; it takes the power of what it is compared with or
//! added to. A number that multiplies a rate or divides seconds is a time if it is a multiple of 60 (`* 3600`), and
//! otherwise a plain factor (`* 100`). Next to a part whose power is 0, such a multiple may be either a time or a
//! factor (`600 / count_over_time(x[10m])`); the value that the result is compared with decides which.

use std::collections::BTreeMap;
use std::ops::Range;

use super::tokens::tokens;

/// Powers of time of recorded series, by name.
pub(crate) type Recorded = BTreeMap<String, i32>;

/// A time in an expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Time {
    Duration(Range<usize>),
    /// A number, and its power of time, which is never 0.
    Number(Range<usize>, i32),
}

/// The durations in an expression, in order, and the exponent of time in the expression's unit.
///
/// # Panics
/// If the text is not an expression, or mixes powers of time.
pub(crate) fn times(text: &str, recorded: &Recorded) -> (Vec<Time>, i32) {
    let mut reader = Reader { text, tokens: tokens(text), at: 0, recorded, times: Vec::new() };
    let whole = reader.or();
    assert!(reader.at == reader.tokens.len(), "{} after the end of {text}", reader.word());
    let power = reader.settle(whole, 0, false);
    reader.times.sort_by_key(|time| match time {
        Time::Duration(range) | Time::Number(range, _) => range.start,
    });
    (reader.times, power)
}

const AGGREGATIONS: [&str; 12] =
    ["sum", "min", "max", "avg", "group", "stddev", "stdvar", "count", "count_values", "bottomk", "topk", "quantile"];
/// Functions that return a plain number, whatever their argument is.
const COUNTS: [&str; 10] = [
    "count",
    "group",
    "count_values",
    "count_over_time",
    "present_over_time",
    "absent",
    "absent_over_time",
    "changes",
    "resets",
    "sgn",
];

/// The exponent of time in the unit of a part; `None` if unknown.
enum Power {
    Known(i32),
    /// The part consists only of numbers, which are scaled if the part turns out to be a time.
    Free(Vec<Range<usize>>),
}

struct Reader<'t> {
    text: &'t str,
    tokens: Vec<Range<usize>>,
    at: usize,
    recorded: &'t Recorded,
    times: Vec<Time>,
}

impl Reader<'_> {
    fn word(&self) -> &str {
        self.tokens.get(self.at).map_or("", |range| &self.text[range.clone()])
    }

    fn next(&mut self) -> Range<usize> {
        let range = self.tokens.get(self.at).unwrap_or_else(|| panic!("{} ends too early", self.text)).clone();
        self.at += 1;
        range
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.word() == word;
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, word: &str) {
        assert!(self.take(word), "`{word}` and not `{}` in {}", self.word(), self.text);
    }

    fn take_one_of(&mut self, words: &[&str]) -> Option<String> {
        let word = self.word().to_owned();
        words.contains(&word.as_str()).then(|| {
            self.at += 1;
            word
        })
    }

    /// Gives a part this power unless it already has one, and returns the power that it has.
    fn settle(&mut self, part: Power, power: i32, strict: bool) -> i32 {
        match part {
            Power::Known(own) => {
                assert!(!strict || own == power, "seconds to the {own} beside seconds to the {power} in {}", self.text);
                own
            }
            Power::Free(numbers) => {
                if power != 0 {
                    self.times.extend(numbers.into_iter().map(|range| Time::Number(range, power)));
                }
                power
            }
        }
    }

    /// Rescales two parts so that both have the same power of the clock factor.
    fn unify(&mut self, left: Power, right: Power) -> Power {
        match (left, right) {
            (Power::Free(mut left), Power::Free(right)) => {
                left.extend(right);
                Power::Free(left)
            }
            (Power::Known(power), other) | (other, Power::Known(power)) => {
                self.settle(other, power, true);
                Power::Known(power)
            }
        }
    }

    fn or(&mut self) -> Power {
        let mut left = self.and();
        while self.take("or") {
            self.matching();
            // The result is one side or the other, so the two need not have the same power.
            let right = self.and();
            left = match (left, right) {
                (Power::Known(power), Power::Known(_)) => Power::Known(power),
                (left, right) => self.unify(left, right),
            };
        }
        left
    }

    fn and(&mut self) -> Power {
        let left = self.comparison();
        while self.take_one_of(&["and", "unless"]).is_some() {
            self.matching();
            let right = self.comparison();
            self.settle(right, 0, false);
        }
        left
    }

    fn comparison(&mut self) -> Power {
        let mut left = self.sum();
        while self.take_one_of(&["==", "!=", ">", "<", ">=", "<="]).is_some() {
            let truth = self.take("bool");
            self.matching();
            let right = self.sum();
            left = self.unify(left, right);
            if truth {
                left = Power::Known(0);
            }
        }
        left
    }

    fn sum(&mut self) -> Power {
        let mut left = self.product();
        while self.take_one_of(&["+", "-"]).is_some() {
            self.matching();
            let right = self.product();
            left = self.unify(left, right);
        }
        left
    }

    fn product(&mut self) -> Power {
        let mut left = self.signed();
        while let Some(sign) = self.take_one_of(&["*", "/", "%"]) {
            self.matching();
            let right = self.signed();
            left = match sign.as_str() {
                "*" => self.multiply(left, right),
                "/" => self.divide(left, right),
                _ => self.unify(left, right),
            };
        }
        left
    }

    fn multiply(&mut self, left: Power, right: Power) -> Power {
        match (left, right) {
            (Power::Known(left), Power::Known(right)) => Power::Known(left + right),
            (Power::Known(0), Power::Free(numbers)) | (Power::Free(numbers), Power::Known(0))
                if self.are_times(&numbers) =>
            {
                Power::Free(numbers)
            }
            (Power::Known(power), Power::Free(numbers)) | (Power::Free(numbers), Power::Known(power)) => {
                let is_time = power == -1 && self.are_times(&numbers);
                let own = i32::from(is_time);
                Power::Known(power + self.settle(Power::Free(numbers), own, true))
            }
            (Power::Free(left), Power::Free(right)) => Power::Free(if self.are_times(&right) { right } else { left }),
        }
    }

    fn divide(&mut self, left: Power, right: Power) -> Power {
        match (left, right) {
            (Power::Known(left), Power::Known(right)) => Power::Known(left - right),
            (Power::Known(power), Power::Free(numbers)) => {
                let is_time = power == 1 && self.are_times(&numbers);
                let own = i32::from(is_time);
                Power::Known(power - self.settle(Power::Free(numbers), own, true))
            }
            (Power::Free(numbers), Power::Known(0)) if self.are_times(&numbers) => Power::Free(numbers),
            (Power::Free(_), Power::Known(power)) => Power::Known(-power),
            (Power::Free(left), Power::Free(_)) => Power::Free(left),
        }
    }

    /// Whether there is at least one number, and all of them are multiples of 60.
    fn are_times(&self, numbers: &[Range<usize>]) -> bool {
        let is_time = |range: &Range<usize>| {
            self.text[range.clone()].parse().is_ok_and(|number: f64| number >= 60.0 && number % 60.0 == 0.0)
        };
        !numbers.is_empty() && numbers.iter().all(is_time)
    }

    fn signed(&mut self) -> Power {
        while self.take_one_of(&["-", "+"]).is_some() {}
        let base = self.selected();
        if self.take("^") {
            self.matching();
            let exponent = self.signed();
            self.settle(exponent, 0, false);
        }
        base
    }

    /// A part with its range, its offset and its `@` modifier.
    fn selected(&mut self) -> Power {
        let part = self.part();
        loop {
            if self.take("[") {
                self.duration();
                if self.take(":") && self.word() != "]" {
                    self.duration();
                }
                self.expect("]");
            } else if self.take("offset") {
                self.take("-");
                self.duration();
            } else if self.take("@") {
                self.part();
            } else {
                return part;
            }
        }
    }

    fn duration(&mut self) {
        let range = self.next();
        self.times.push(Time::Duration(range));
    }

    fn part(&mut self) -> Power {
        let range = self.next();
        let word = self.text[range.clone()].to_owned();
        match word.as_bytes()[0] {
            b'(' => {
                let inside = self.or();
                self.expect(")");
                inside
            }
            b'0'..=b'9' | b'.' => Power::Free(vec![range]),
            b'"' | b'\'' | b'`' => Power::Known(0),
            b'{' => {
                self.selector();
                Power::Known(0)
            }
            _ if AGGREGATIONS.contains(&word.as_str()) => {
                self.grouping();
                let value = self.call(&word);
                self.grouping();
                value
            }
            _ if self.word() == "(" => self.call(&word),
            _ if ["inf", "nan"].contains(&word.to_lowercase().as_str()) => Power::Free(Vec::new()),
            _ => {
                if self.take("{") {
                    self.selector();
                }
                Power::Known(self.recorded.get(&word).copied().unwrap_or_else(|| named(&word)))
            }
        }
    }

    fn selector(&mut self) {
        while !self.take("}") {
            self.next();
        }
    }

    fn call(&mut self, name: &str) -> Power {
        self.expect("(");
        let mut values = Vec::new();
        while !self.take(")") {
            values.push(self.or());
            self.take(",");
        }
        match name {
            "time" | "timestamp" => return Power::Known(1),
            "rate" | "irate" | "deriv" => {
                let value = values.pop().unwrap_or_else(|| panic!("{name} of nothing in {}", self.text));
                return Power::Known(self.settle(value, 0, false) - 1);
            }
            // The histograms measure how long work takes, which does not depend on the speed of the clock.
            "histogram_quantile" => return Power::Known(0),
            _ if COUNTS.contains(&name) => return Power::Known(0),
            _ => {}
        }
        let ahead = if name == "predict_linear" { values.pop() } else { None };
        if let Some(ahead) = ahead {
            self.settle(ahead, 1, true);
        }
        // The vector, which is the first value that is not a plain number, sets the power. The bounds of a `clamp` have
        // the same power.
        let at = values.iter().position(|value| matches!(value, Power::Known(_))).unwrap_or(0);
        if values.is_empty() {
            return Power::Known(0);
        }
        let mut value = values.remove(at);
        for other in values {
            if name.starts_with("clamp") {
                value = self.unify(value, other);
            } else {
                self.settle(other, 0, false);
            }
        }
        value
    }

    /// `by (…)` or `without (…)`.
    fn grouping(&mut self) {
        if self.take_one_of(&["by", "without"]).is_some() {
            self.labels();
        }
    }

    /// `on (…) group_left (…)` and the like.
    fn matching(&mut self) {
        if self.take_one_of(&["on", "ignoring"]).is_some() {
            self.labels();
            if self.take_one_of(&["group_left", "group_right"]).is_some() && self.word() == "(" {
                self.labels();
            }
        }
    }

    fn labels(&mut self) {
        self.expect("(");
        while !self.take(")") {
            self.next();
        }
    }
}

/// The power of time of the unit in a metric's name.
fn named(metric: &str) -> i32 {
    let base = ["_total", "_sum"].iter().find_map(|end| metric.strip_suffix(end)).unwrap_or(metric);
    i32::from(base.ends_with("_seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expression with its times marked: `<5m>`, `<3600^1>`.
    fn marked(text: &str) -> String {
        let recorded = Recorded::from([("gpu:pressure:increase5m".to_owned(), 1)]);
        let mut marked = text.to_owned();
        for time in times(text, &recorded).0.into_iter().rev() {
            let (range, power) = match time {
                Time::Duration(range) => (range, String::new()),
                Time::Number(range, power) => (range, format!("^{power}")),
            };
            let inside = format!("<{}{power}>", &marked[range.clone()]);
            marked.replace_range(range, &inside);
        }
        marked
    }

    #[test]
    fn durations_and_seconds_are_found_and_nothing_else() {
        for expression in [
            "max_over_time(a[<5m>]) > 0.97 * on (instance, gpu) group_left (name) b",
            "min_over_time(a[<10m>] offset <1h30m>) > min_over_time(a[<10m>:<30s>] offset -<5m>)",
            "predict_linear(used_bytes[<30m>], <3600^1>) > total_bytes - reserved_bytes",
            "predict_linear(used_bytes[<30m>], 2 * <3600^1>) >= total_bytes",
            "idle_seconds{a=\"5m > 3\", b!~'x'} > <3600^1> and on (gpu) used_bytes > 1073741824 # > 5m",
            "increase(pressure_seconds_total{ratio=\"0.85\"}[<5m>]) > 0.95 * <300^1>",
            "rate(pressure_seconds_total[<5m>]) > 0.95",
            "increase(pressure_seconds_total[<5m>]) / <300^1> > 0.95",
            "gpu:pressure:increase5m >= <285^1>",
            "deriv(used_bytes[<30m>]) > <1048576^-1>",
            "<3600^1> * deriv(used_bytes[<30m>]) > 1e9",
            "100 * rate(faults_total[<5m>]) > <2^-1>",
            "free_bytes / deriv(used_bytes[<30m>]) < <3600^1>",
            "(time() - start_time_seconds) > <600^1>",
            "time() - (max by (gpu) (timestamp(x))) > <0.5^1> or absent(up{job=\"a\"} == 1)",
            "count(idle_seconds > <60^1>) by (gpu) > 60",
            "topk(3, clamp_min(age_seconds, <120^1>)) > bool <180^1>",
            "histogram_quantile(0.99, sum by (le) (rate(duration_seconds_bucket[<5m>]))) > 60",
            "<600^1> / count_over_time(up[<10m>]) > on (a) group_left () max by (a) (1.2 * window_seconds)",
            "60 * used_bytes > 6000",
            "up == 0",
        ] {
            let plain = expression.replace("^1>", ">").replace("^-1>", ">");
            let mut bare = String::new();
            let mut inside = false;
            for (at, c) in plain.char_indices() {
                let opens = c == '<' && plain[at + 1..].starts_with(|next: char| next.is_ascii_digit());
                let closes = c == '>' && inside;
                inside = (inside || opens) && !closes;
                if !opens && !closes {
                    bare.push(c);
                }
            }
            assert_eq!(marked(&bare), expression);
        }
    }

    #[test]
    #[should_panic(expected = "seconds to the 0 beside seconds to the 1")]
    fn seconds_are_not_compared_with_bytes() {
        times("idle_seconds > used_bytes", &Recorded::new());
    }
}
