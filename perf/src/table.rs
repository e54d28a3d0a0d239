//! The report as text: one table a section, with the columns that it fills.

use crate::report::{Report, Row, Section};
use crate::units;

type Column = (&'static str, fn(&Row) -> Option<String>);

/// Further columns of words, which are padded on the right.
pub const WORDS: [&str; 2] = ["against", "note"];

/// The columns of every section; those that stay empty are left out.
pub const COLUMNS: [Column; 17] = [
    ("what", |row| Some(row.series.clone())),
    ("", |row| Some(row.label.clone())),
    ("against", |row| row.against.as_ref().map(|other| other.name.clone())),
    ("time", |row| row.ns.map(units::nanoseconds)),
    ("its time", |row| row.against.as_ref().map(|other| units::nanoseconds(other.ns))),
    ("of its time", |row| row.against.as_ref().map(|other| format!("{:.2}", other.ratio.median))),
    ("p10 to p90", spread_of_ratio),
    ("p50", |row| row.spread.map(|spread| units::nanoseconds(spread.p50_ns))),
    ("p99", |row| row.spread.map(|spread| units::nanoseconds(spread.p99_ns))),
    ("p99.9", |row| row.spread.map(|spread| units::nanoseconds(spread.p999_ns))),
    ("max", |row| row.spread.map(|spread| units::nanoseconds(spread.max_ns))),
    ("messages/s", |row| row.messages_per_s.map(units::count)),
    ("GB/s", |row| row.gb_per_s.map(|value| format!("{value:.2}"))),
    ("bytes", |row| row.bytes.map(|bytes| format!("{bytes:.0}"))),
    ("floor", floor),
    ("of the floor's", ratio),
    ("note", |row| (!row.note.is_empty()).then(|| row.note.clone())),
];

fn spread_of_ratio(row: &Row) -> Option<String> {
    let ratio = row.against.as_ref()?.ratio;
    Some(format!("{:.2} to {:.2}", ratio.p10, ratio.p90))
}

fn floor(row: &Row) -> Option<String> {
    row.floor.map(|floor| match row.gb_per_s {
        Some(_) => format!("{floor:.2} GB/s"),
        None => units::nanoseconds(floor),
    })
}

/// More is worse of a time, and better of a rate: a section may have both.
fn ratio(row: &Row) -> Option<String> {
    let what = if row.gb_per_s.is_some() { "GB/s" } else { "time" };
    row.ratio.map(|value| format!("{what} × {value:.2}"))
}

/// The filled columns of a section, and its cells.
pub fn cells(section: &Section) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let filled: Vec<&Column> = COLUMNS
        .iter()
        .filter(|(_, cell)| section.rows.iter().any(|row| cell(row).is_some()))
        .collect();
    let titles = filled.iter().map(|(title, _)| *title).collect();
    let line = |row: &Row| filled.iter().map(|(_, cell)| cell(row).unwrap_or_default()).collect();
    (titles, section.rows.iter().map(line).collect())
}

/// The whole report.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    for (name, value) in report.machine.iter().chain(&report.setup) {
        text += &format!("{name:>14}: {value}\n");
    }
    for section in &report.sections {
        text += &format!("\n{}\n", section.title);
        let (titles, lines) = cells(section);
        let titles: Vec<String> = titles.iter().map(|title| (*title).to_owned()).collect();
        text += &align(&titles, &lines);
    }
    let aims: Vec<_> = report.sections.iter().flat_map(|section| &section.aims).collect();
    if !aims.is_empty() {
        text += "\nWhat kestrel sets out to reach\n";
    }
    for aim in aims {
        let verdict = if aim.is_met() { "reached" } else { "MISSED" };
        let relation = if aim.at_least { "at least" } else { "at most" };
        let [value, bound] = aim.figures();
        text += &format!("  {verdict:<8} {value} ({relation} {bound})  {}\n", aim.what);
    }
    text
}

/// Pads every column to its widest cell: words to the left, figures to the right.
fn align(titles: &[String], lines: &[Vec<String>]) -> String {
    let mut text = String::new();
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.chain([titles[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    for line in std::iter::once(titles).chain(lines.iter().map(Vec::as_slice)) {
        let padded = line.iter().zip(titles).zip(&widths).enumerate().map(
            |(column, ((cell, title), width))| {
                if column < 2 || WORDS.contains(&title.as_str()) {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            },
        );
        text += &format!("  {}\n", padded.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Aim;

    #[test]
    fn what_is_missed_by_little_looks_missed() {
        let figures = |value, bound| Aim::at_most("x", value, bound).figures();
        assert_eq!(figures(1.154, 1.15), ["1.154", "1.150"]);
        assert_eq!(figures(1.15004, 1.15), ["1.15004", "1.15000"]);
        assert_eq!(figures(1.2, 1.15), ["1.20", "1.15"]);
        assert_eq!(figures(1.15, 1.15), ["1.15", "1.15"]);
        assert_eq!(Aim::at_least("x", 0.8496, 0.85).figures(), ["0.8496", "0.8500"]);
        let mut report = Report::new(Vec::new(), Vec::new());
        let mut section = Section::new("x", "x");
        section.aims.push(Aim::at_most("a time", 1.154, 1.15));
        report.sections.push(section);
        assert!(render(&report).contains("MISSED   1.154 (at most 1.150)  a time"));
        assert!(crate::html::render(&report).contains("1.154</td>"));
    }

    #[test]
    fn a_ratio_says_of_what_it_is() {
        let row = Row { ratio: Some(0.5), ..Row::new("x", "x") };
        assert_eq!(ratio(&row).as_deref(), Some("time × 0.50"));
        let row = Row { gb_per_s: Some(1.0), ..row };
        assert_eq!(ratio(&row).as_deref(), Some("GB/s × 0.50"));
    }
}
