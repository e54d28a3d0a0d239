//! What samples say: medians, percentiles, and which samples to believe.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The percentiles of many single measurements, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Spread {
    pub p50_ns: f64,
    pub p99_ns: f64,
    pub p999_ns: f64,
    pub max_ns: f64,
    pub count: u64,
}

impl Spread {
    /// `scale` converts one recorded unit to nanoseconds.
    pub fn of(histogram: &Histogram<u64>, scale: f64) -> Spread {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 * scale;
        Spread {
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: histogram.max() as f64 * scale,
            count: histogram.len(),
        }
    }
}

/// A histogram for ticks: 1 to 2^40, three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1 << 40, 3).expect("constant bounds are valid")
}

/// The median; not a number if there is none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// What is below a share of the values, between the two nearest; `sorted` is not empty.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// A ratio over the rounds of a run: where the middle lies, and most of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    pub p10: f64,
    pub median: f64,
    pub p90: f64,
    pub rounds: u64,
}

impl Ratio {
    /// Nothing without a round, or if one could not be measured.
    pub fn of(rounds: &[f64]) -> Option<Ratio> {
        if rounds.is_empty() || rounds.iter().any(|round| !round.is_finite()) {
            return None;
        }
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Ratio {
            p10: quantile(&sorted, 0.1),
            median: quantile(&sorted, 0.5),
            p90: quantile(&sorted, 0.9),
            rounds: sorted.len() as u64,
        })
    }
}

/// The geometric mean; not a number if there is none.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// One measurement with the floor taken just before and just after.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    pub before: f64,
    pub value: f64,
    pub after: f64,
}

impl Beside {
    pub fn floor(&self) -> f64 {
        (self.before + self.after) / 2.0
    }

    pub fn excess(&self) -> f64 {
        self.value - self.floor()
    }

    /// Whether the machine was the same before and after: within a tenth.
    pub fn is_steady(&self) -> bool {
        (self.before - self.after).abs() <= 0.1 * self.before.min(self.after)
    }
}

/// The steady samples, or all of them where none is steady (then the second
/// value is false, and reports must say so).
pub fn believable(samples: &[Beside]) -> (Vec<Beside>, bool) {
    let steady: Vec<Beside> = samples.iter().copied().filter(Beside::is_steady).collect();
    if steady.is_empty() { (samples.to_vec(), false) } else { (steady, true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn ratios_say_where_most_rounds_lie() {
        let rounds: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        let expected = Ratio { p10: 1.0, median: 5.0, p90: 9.0, rounds: 11 };
        assert_eq!(Ratio::of(&rounds), Some(expected));
        let one = Ratio { p10: 2.0, median: 2.0, p90: 2.0, rounds: 1 };
        assert_eq!(Ratio::of(&[2.0]), Some(one));
        assert_eq!(Ratio::of(&[]), None);
        assert_eq!(Ratio::of(&[1.0, f64::NAN]), None);
        assert!((geometric_mean(&[0.5, 2.0, 8.0]) - 2.0).abs() < 1e-12);
        assert!(geometric_mean(&[]).is_nan());
    }

    #[test]
    fn unsteady_samples_go_unless_nothing_else_is_left() {
        let steady = Beside { before: 50.0, value: 90.0, after: 54.0 };
        let unsteady = Beside { before: 50.0, value: 200.0, after: 170.0 };
        let (kept, trusted) = believable(&[steady, unsteady]);
        assert!(trusted && kept.len() == 1 && kept[0].excess() == 38.0);
        let (kept, trusted) = believable(&[unsteady]);
        assert!(!trusted && kept.len() == 1);
    }
}
