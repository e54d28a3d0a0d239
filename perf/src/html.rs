//! The report as one page that needs nothing else: plots, tables, aims.

use crate::plot::{Axes, Line, chart, escape};
use crate::report::{Report, Row, Section};
use crate::{table, units};
use std::fmt::Write;

/// Among the colours of a plot.
const COLOUR_OF_FLOOR: usize = 7;

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --good: #0a7d4f; --bad: #c2410c; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, td:nth-child(2), td.note, th.note { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; } dd { margin: 0; }
svg { width: 100%; max-width: 760px; font: 12px system-ui, sans-serif; } svg text { fill: currentColor; }
svg .grid { stroke: var(--line); } .met { color: var(--good); } .missed { color: var(--bad); }
.scroll { overflow-x: auto; }
";

pub fn render(report: &Report) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>kestrel-perf</title>\
         <style>{STYLE}</style></head><body>\n<h1>kestrel-perf</h1>\n<dl>"
    );
    for (name, value) in report.machine.iter().chain(&report.setup) {
        let _ = write!(page, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    page += "</dl>\n";
    aims(&mut page, report);
    for section in &report.sections {
        let _ =
            writeln!(page, "<h2 id=\"{}\">{}</h2>", escape(&section.id), escape(&section.title));
        if section.rows.iter().any(|row| row.against.is_some()) {
            page.extend([times(section), ratios(section)].into_iter().flatten());
        } else if let Some(svg) = plot(section) {
            page += &svg;
        }
        rows(&mut page, section);
    }
    page += "</body></html>\n";
    page
}

fn aims(page: &mut String, report: &Report) {
    let mut aims = report.sections.iter().flat_map(|section| &section.aims).peekable();
    if aims.peek().is_none() {
        return;
    }
    *page += "<h2>What kestrel sets out to reach</h2>\n<table><tr><th>aim</th><th>bound</th><th>here</th><th></th></tr>";
    for aim in aims {
        let relation = if aim.at_least { "≥" } else { "≤" };
        let [value, bound] = aim.figures();
        let (class, verdict) = if aim.is_met() { ("met", "reached") } else { ("missed", "missed") };
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{relation} {bound}</td><td>{value}</td><td class=\"{class}\">{verdict}</td></tr>",
            escape(&aim.what),
        );
    }
    *page += "</table>\n";
}

fn rows(page: &mut String, section: &Section) {
    let (titles, lines) = table::cells(section);
    let class = |title: &str| {
        if table::WORDS.contains(&title) { " class=\"note\"" } else { "" }
    };
    *page += "<div class=\"scroll\"><table><tr>";
    for title in &titles {
        let _ = write!(page, "<th{}>{}</th>", class(title), escape(title));
    }
    *page += "</tr>";
    for line in lines {
        *page += "<tr>";
        for (cell, title) in line.iter().zip(&titles) {
            let _ = write!(page, "<td{}>{}</td>", class(title), escape(cell));
        }
        *page += "</tr>";
    }
    *page += "</table></div>\n";
}

/// The values of a row by its size.
fn by_size(row: &Row, y: Option<f64>) -> Option<(f64, f64)> {
    Some((row.size.filter(|size| *size > 0)? as f64, y?))
}

/// A line of those rows that have the value.
fn line<'a>(
    name: String,
    colour: usize,
    rows: impl Iterator<Item = &'a Row>,
    y: fn(&Row) -> Option<f64>,
) -> Line {
    let points = rows.filter_map(|row| by_size(row, y(row))).collect();
    Line { name, colour, dashed: false, points }
}

/// Names in the order in which they first appear.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

fn name_of_other(row: &Row) -> Option<&str> {
    row.against.as_ref().map(|against| against.name.as_str())
}

/// A comparison's times by size, where it is of one kind of work: kestrel's, those of
/// the others, and the floor.
fn times(section: &Section) -> Option<String> {
    let sizes = |series: &str| {
        let rows = section.rows.iter().filter(|row| row.series == series);
        rows.filter_map(|row| row.size).collect::<std::collections::BTreeSet<_>>().len()
    };
    let mut series = distinct(section.rows.iter().map(|row| row.series.as_str()));
    series.retain(|series| sizes(series) >= 2);
    let [series] = series[..] else {
        return None;
    };
    let others = distinct(section.rows.iter().filter_map(name_of_other));
    let rows = |other| {
        let wanted = move |row: &&Row| row.series == series && name_of_other(row) == Some(other);
        section.rows.iter().filter(wanted)
    };
    let first = *others.first()?;
    let mut lines = vec![
        line("kestrel".to_owned(), 0, rows(first), |row| row.ns),
        Line {
            dashed: true,
            ..line("floor".to_owned(), COLOUR_OF_FLOOR, rows(first), |row| row.floor)
        },
    ];
    for (colour, other) in others.into_iter().enumerate() {
        let time = |row: &Row| row.against.as_ref().map(|against| against.ns);
        lines.push(line(other.to_owned(), colour + 1, rows(other), time));
    }
    lines.retain(|line| line.points.len() >= 2);
    chart(&axes_of_size("time", true, units::nanoseconds), &lines)
}

/// A comparison's ratios by size.
fn ratios(section: &Section) -> Option<String> {
    let mut lines: Vec<Line> = Vec::new();
    for row in &section.rows {
        let Some(against) = &row.against else { continue };
        let Some(point) = by_size(row, Some(against.ratio.median)) else { continue };
        let name = format!("{} / {}", row.series, against.name);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => {
                let (colour, points) = (lines.len(), vec![point]);
                lines.push(Line { name, colour, dashed: false, points });
            }
        }
    }
    lines.retain(|line| line.points.len() >= 2);
    chart(&axes_of_size("of the other's time", false, |value| format!("{value:.1}")), &lines)
}

fn axes_of_size(y: &'static str, y_logarithmic: bool, y_text: fn(f64) -> String) -> Axes {
    let x_text = |value| units::bytes(value as u64);
    Axes { x: "message size", y, y_logarithmic, x_text, y_text }
}

/// A row's floor in the unit of the plot, of which a row with a bandwidth has one.
fn floor(row: &Row, by_bandwidth: bool) -> Option<f64> {
    let is_time = row.gb_per_s.is_none();
    match by_bandwidth || is_time {
        true => row.floor,
        // A gigabyte a second is a byte a nanosecond.
        false => Some(row.size? as f64 / row.floor?),
    }
}

/// The plot that suits the section's rows: by size or by depth.
fn plot(section: &Section) -> Option<String> {
    let by_bandwidth = section.rows.iter().all(|row| row.gb_per_s.is_some());
    let by_depth = section.rows.iter().any(|row| row.depth.is_some());
    let x = |row: &Row| {
        if by_depth { row.depth } else { row.size }
            .filter(|value| *value > 0)
            .map(|value| value as f64)
    };
    let y = |row: &Row| if by_bandwidth { row.gb_per_s } else { row.ns };
    let axes = Axes {
        x: if by_depth { "queue depth" } else { "message size" },
        y: if by_bandwidth { "GB/s" } else { "time" },
        y_logarithmic: !by_bandwidth,
        x_text: if by_depth {
            |value| units::count(value)
        } else {
            |value| units::bytes(value as u64)
        },
        y_text: if by_bandwidth { |value| format!("{value:.0}") } else { units::nanoseconds },
    };
    let series = distinct(section.rows.iter().map(|row| row.series.as_str()));
    let mut lines = Vec::new();
    for (colour, name) in series.into_iter().enumerate() {
        let rows = || section.rows.iter().filter(|row| row.series == name);
        let points: Vec<_> = rows().filter_map(|row| Some((x(row)?, y(row)?))).collect();
        if points.len() >= 2 {
            lines.push(Line { name: name.to_owned(), colour, dashed: false, points });
        }
        let floors: Vec<_> =
            rows().filter_map(|row| Some((x(row)?, floor(row, by_bandwidth)?))).collect();
        if floors.len() >= 2 {
            lines.push(Line {
                name: format!("{name}, floor"),
                colour,
                dashed: true,
                points: floors,
            });
        }
    }
    chart(&axes, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where some rows have a bandwidth and others have none, times are plotted.
    #[test]
    fn a_floor_has_the_unit_of_its_plot() {
        let row = Row { size: Some(4096), floor: Some(8.0), ..Row::new("x", "x") };
        let stream = Row { gb_per_s: Some(4.0), ..row.clone() };
        assert_eq!(floor(&row, false), Some(8.0));
        assert_eq!(floor(&stream, false), Some(512.0));
        assert_eq!(floor(&stream, true), Some(8.0));
    }
}
