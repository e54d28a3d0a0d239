//! Line charts as SVG, by hand: no library, no network, no script.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;
/// Where a line's name begins, right of the plot, and how wide a character is about.
const NAME_AT: f64 = 42.0;
const CHAR_WIDTH: f64 = 6.5;
/// Colours that people with colour blindness tell apart (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a00", "#777777"];

/// One line of a chart.
pub struct Line {
    pub name: String,
    /// Lines of one colour belong together: what was measured, and its floor.
    pub colour: usize,
    pub dashed: bool,
    pub points: Vec<(f64, f64)>,
}

/// What the axes say.
pub struct Axes {
    pub x: &'static str,
    pub y: &'static str,
    pub y_logarithmic: bool,
    pub x_text: fn(f64) -> String,
    pub y_text: fn(f64) -> String,
}

/// From values to places.
struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    from: f64,
    to: f64,
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let map = |value: f64| {
            if self.logarithmic { value.max(self.low).log2() } else { value }
        };
        let (low, high) = (map(self.low), map(self.high));
        let share = if high > low { (map(value) - low) / (high - low) } else { 0.5 };
        self.from + share * (self.to - self.from)
    }

    /// Round values along the scale: powers of two or four, or even steps.
    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let (low, high) = (self.low.log2().floor() as i32, self.high.log2().ceil() as i32);
            let step = ((high - low) as usize).div_ceil(12).max(1);
            return (low..=high)
                .step_by(step)
                .map(|power| 2f64.powi(power))
                .filter(|v| *v >= self.low * 0.999 && *v <= self.high * 1.001)
                .collect();
        }
        let rough = (self.high - self.low) / 6.0;
        let magnitude = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|m| m * magnitude)
            .into_iter()
            .find(|s| *s >= rough)
            .unwrap_or(rough);
        (0..20)
            .map(|i| self.low + f64::from(i) * step)
            .take_while(|v| *v <= self.high * 1.001)
            .collect()
    }
}

/// A chart of the lines; nothing if no line has two points.
pub fn chart(axes: &Axes, lines: &[Line]) -> Option<String> {
    let points = || lines.iter().flat_map(|line| &line.points);
    if !lines.iter().any(|line| line.points.len() >= 2) {
        return None;
    }
    let range = |of: fn(&(f64, f64)) -> f64| {
        points()
            .map(of)
            .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
    };
    let ((x_low, x_high), (y_low, y_high)) = (range(|point| point.0), range(|point| point.1));
    let x = Scale {
        low: x_low.max(1.0),
        high: x_high,
        logarithmic: true,
        from: LEFT,
        to: WIDTH - RIGHT,
    };
    let y_low = if axes.y_logarithmic { 2f64.powf(y_low.max(0.1).log2().floor()) } else { 0.0 };
    let y_high = if axes.y_logarithmic { 2f64.powf(y_high.log2().ceil()) } else { y_high * 1.05 };
    let y = Scale {
        low: y_low,
        high: y_high,
        logarithmic: axes.y_logarithmic,
        from: HEIGHT - BOTTOM,
        to: TOP,
    };

    // Long names get more room; the page scales the whole.
    let name_chars = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
    let width = WIDTH.max(WIDTH - RIGHT + NAME_AT + CHAR_WIDTH * name_chars as f64);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {width} {HEIGHT}\" role=\"img\" aria-label=\"{} by {}\">",
        axes.y, axes.x
    );
    draw_axes(&mut svg, axes, &x, &y);
    for (index, line) in lines.iter().enumerate() {
        draw_line(&mut svg, line, index, &x, &y, axes);
    }
    svg += "</svg>\n";
    Some(svg)
}

fn draw_axes(svg: &mut String, axes: &Axes, x: &Scale, y: &Scale) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in y.ticks() {
        let at = y.at(tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
        );
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            (axes.y_text)(tick)
        );
    }
    for tick in x.ticks() {
        let at = x.at(tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>"
        );
        let _ = write!(
            svg,
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            (axes.x_text)(tick)
        );
    }
    let middle = (LEFT + right) / 2.0;
    let _ = write!(
        svg,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        HEIGHT - 8.0,
        axes.x
    );
    let _ = write!(svg, "<text x=\"{}\" y=\"{TOP}\">{}</text>", LEFT + 6.0, axes.y);
}

fn draw_line(svg: &mut String, line: &Line, index: usize, x: &Scale, y: &Scale, axes: &Axes) {
    let colour = COLOURS[line.colour % COLOURS.len()];
    let dash = if line.dashed { " stroke-dasharray=\"5 4\"" } else { "" };
    let path: Vec<String> = line
        .points
        .iter()
        .map(|point| format!("{:.1},{:.1}", x.at(point.0), y.at(point.1)))
        .collect();
    let _ = write!(
        svg,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash} points=\"{}\"/>",
        path.join(" ")
    );
    for point in &line.points {
        let (at_x, at_y) = (x.at(point.0), y.at(point.1));
        let title = format!(
            "{}: {} at {}",
            escape(&line.name),
            (axes.y_text)(point.1),
            (axes.x_text)(point.0)
        );
        let _ = write!(
            svg,
            "<circle cx=\"{at_x:.1}\" cy=\"{at_y:.1}\" r=\"3\" fill=\"{colour}\"><title>{title}</title></circle>"
        );
    }
    let (at_x, at_y) = (WIDTH - RIGHT + NAME_AT - 28.0, TOP + 8.0 + 20.0 * index as f64);
    let _ = write!(
        svg,
        "<line x1=\"{at_x}\" x2=\"{}\" y1=\"{at_y}\" y2=\"{at_y}\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
        at_x + 22.0
    );
    let _ = write!(
        svg,
        "<text x=\"{}\" y=\"{}\">{}</text>",
        at_x + 28.0,
        at_y + 4.0,
        escape(&line.name)
    );
}

/// Text that may stand in HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_holds_its_lines_and_escapes_their_names() {
        let axes = Axes {
            x: "size",
            y: "GB/s",
            y_logarithmic: false,
            x_text: |v| v.to_string(),
            y_text: |v| v.to_string(),
        };
        let line = |points| Line { name: "a<b".to_owned(), colour: 0, dashed: true, points };
        let svg = chart(&axes, &[line(vec![(1024.0, 3.0), (4096.0, 9.0)])]).expect("a chart");
        assert!(svg.contains("a&lt;b") && svg.contains("polyline") && !svg.contains("NaN"));
        assert!(svg.contains("viewBox=\"0 0 760 360\""), "a short name needs no more room");
        let mut long = line(vec![(1024.0, 3.0), (4096.0, 9.0)]);
        long.name = "n".repeat(40);
        let svg = chart(&axes, &[long]).expect("a chart");
        assert!(svg.contains("viewBox=\"0 0 872 360\""), "{}", &svg[..80]);
        assert!(chart(&axes, &[line(vec![(1.0, 1.0)])]).is_none());
        assert!(chart(&axes, &[]).is_none());
    }
}
