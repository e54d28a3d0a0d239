//! What a run found: the data behind the table, the page and the JSON.

use crate::statistics::{Ratio, Spread};
use serde::{Deserialize, Serialize};

/// Digits behind the point of an aim's figures, and the most that a difference may need.
const DIGITS: usize = 2;
const DIGITS_MAX: usize = 9;

/// Readers refuse a report of another format.
pub const FORMAT: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub format: u32,
    pub version: String,
    /// Seconds since 1970.
    pub taken_at: u64,
    pub machine: Vec<(String, String)>,
    pub setup: Vec<(String, String)>,
    pub sections: Vec<Section>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Section {
    pub id: String,
    pub title: String,
    pub rows: Vec<Row>,
    pub aims: Vec<Aim>,
}

/// One measured figure. Fields that make no sense for it are absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// Rows of one series make one line of a plot.
    pub series: String,
    pub label: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u64>,
    /// Nanoseconds an operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages_per_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gb_per_s: Option<f64>,
    /// Bytes of memory that one of what the row counts takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
    /// The floor in the unit of the row: GB/s where it has a bandwidth, else nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
    /// To the floor: of the bandwidth, or of the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Another's time for the same work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<Against>,
    #[serde(default)]
    pub note: String,
}

/// Whom a row is compared with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Against {
    pub name: String,
    /// Its nanoseconds an operation.
    pub ns: f64,
    /// The row's time as a share of its time.
    pub ratio: Ratio,
}

/// What kestrel sets out to reach, and whether this run did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Aim {
    pub what: String,
    pub value: f64,
    pub bound: f64,
    pub at_least: bool,
}

impl Section {
    pub fn new(id: &str, title: &str) -> Section {
        Section { id: id.to_owned(), title: title.to_owned(), rows: Vec::new(), aims: Vec::new() }
    }

    /// JSON has no way to write "not a number": what could not be measured goes.
    pub fn without_gaps(mut self) -> Section {
        for row in &mut self.rows {
            for value in [
                &mut row.ns,
                &mut row.messages_per_s,
                &mut row.gb_per_s,
                &mut row.bytes,
                &mut row.floor,
                &mut row.ratio,
            ] {
                *value = value.filter(|value| value.is_finite());
            }
        }
        self.aims.retain(|aim| aim.value.is_finite());
        self
    }
}

impl Row {
    pub fn new(series: &str, label: &str) -> Row {
        Row { series: series.to_owned(), label: label.to_owned(), ..Row::default() }
    }
}

impl Aim {
    pub fn at_most(what: &str, value: f64, bound: f64) -> Aim {
        Aim { what: what.to_owned(), value, bound, at_least: false }
    }

    pub fn at_least(what: &str, value: f64, bound: f64) -> Aim {
        Aim { what: what.to_owned(), value, bound, at_least: true }
    }

    /// The value and the bound as they are printed: with a digit more where a bound that is missed would look
    /// the same.
    pub fn figures(&self) -> [String; 2] {
        let with = |digits| [self.value, self.bound].map(|figure| format!("{figure:.digits$}"));
        let apart = |digits: &usize| {
            let [value, bound] = with(*digits);
            value != bound
        };
        let digits = if self.is_met() { None } else { (DIGITS..DIGITS_MAX).find(apart) };
        with(digits.unwrap_or(DIGITS))
    }

    pub fn is_met(&self) -> bool {
        if self.at_least { self.value >= self.bound } else { self.value <= self.bound }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("{path} is not a report of kestrel-perf: {source}")]
    NotAReport { path: String, source: serde_json::Error },
    #[error("{path} has format {found}; this version reads format {FORMAT}")]
    Format { path: String, found: u32 },
}

impl Report {
    pub fn new(machine: Vec<(String, String)>, setup: Vec<(String, String)>) -> Report {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Report {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            taken_at: since_epoch.map_or(0, |elapsed| elapsed.as_secs()),
            machine,
            setup,
            sections: Vec::new(),
        }
    }

    pub fn read(path: &str) -> Result<Report, ReportError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ReportError::Read { path: path.to_owned(), source })?;
        let report: Report = serde_json::from_str(&text)
            .map_err(|source| ReportError::NotAReport { path: path.to_owned(), source })?;
        if report.format != FORMAT {
            return Err(ReportError::Format { path: path.to_owned(), found: report.format });
        }
        Ok(report)
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("reports hold nothing that JSON cannot")
    }
}
