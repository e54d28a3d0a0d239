//! The report as one page that needs nothing else: plots, tables, aims.

use crate::plot::{Axes, Line, chart, escape};
use crate::report::{Report, Row, Section};
use crate::{table, units};
use std::fmt::Write;

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
        if let Some(svg) = plot(section) {
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
        let (class, verdict) = if aim.is_met() { ("met", "reached") } else { ("missed", "missed") };
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{relation} {:.2}</td><td>{:.2}</td><td class=\"{class}\">{verdict}</td></tr>",
            escape(&aim.what),
            aim.bound,
            aim.value
        );
    }
    *page += "</table>\n";
}

fn rows(page: &mut String, section: &Section) {
    let (titles, lines) = table::cells(section);
    let class = |title: &str| {
        if title == "note" { " class=\"note\"" } else { "" }
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
    let mut series: Vec<&str> = Vec::new();
    for row in &section.rows {
        if !series.contains(&row.series.as_str()) {
            series.push(&row.series);
        }
    }
    let mut lines = Vec::new();
    for (colour, name) in series.into_iter().enumerate() {
        let rows = || section.rows.iter().filter(|row| row.series == name);
        let points: Vec<_> = rows().filter_map(|row| Some((x(row)?, y(row)?))).collect();
        if points.len() >= 2 {
            lines.push(Line { name: name.to_owned(), colour, dashed: false, points });
        }
        let floor: Vec<_> = rows().filter_map(|row| Some((x(row)?, row.floor?))).collect();
        if floor.len() >= 2 {
            lines.push(Line {
                name: format!("{name}, floor"),
                colour,
                dashed: true,
                points: floor,
            });
        }
    }
    chart(&axes, &lines)
}
