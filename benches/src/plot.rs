//! Line charts as SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
/// Room around the plotting area: left and bottom for the axes, top for the title, right for the names.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
/// Colours that are told apart by everybody (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];

/// A chart of several curves over one axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Title above the chart.
    pub title: &'static str,
    /// Axis to the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// Curves in the order of their names.
    pub curves: Vec<Curve>,
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Quantity and unit.
    pub label: &'static str,
    /// Scale by which values become distances.
    pub scale: Scale,
    /// Marks with their labels; if there are none, round numbers are marked.
    pub marks: Vec<(f64, String)>,
}

/// Scale by which values become distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Even distances from zero.
    Linear,
    /// Distances of logarithms.
    Log,
}

/// Measured points of one curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
}

/// An axis with its limits, along so many pixels.
struct Ruler {
    scale: Scale,
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

impl Scale {
    fn apply(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log => value.max(f64::MIN_POSITIVE).log10(),
        }
    }
}

impl Axis {
    /// Round numbers within `[low, high]`, and their names.
    fn round_marks(&self, low: f64, high: f64) -> Vec<(f64, String)> {
        let mut marks = Vec::new();
        match self.scale {
            Scale::Linear => {
                let step = round_step((high - low) / 5.0);
                let mut at = (low / step).ceil() * step;
                while at <= high * 1.000_001 {
                    marks.push(at);
                    at += step;
                }
            }
            Scale::Log => {
                let mut decade = 10_f64.powf(low.max(f64::MIN_POSITIVE).log10().floor());
                while decade <= high {
                    marks.extend([1.0, 2.0, 5.0].map(|digit| digit * decade));
                    decade *= 10.0;
                }
            }
        }
        marks.retain(|mark| (low * 0.999_999..=high * 1.000_001).contains(mark));
        marks.into_iter().map(|mark| (mark, number(mark))).collect()
    }
}

/// 1, 2 or 5 times a power of ten, at least `least`.
fn round_step(least: f64) -> f64 {
    let decade = 10_f64.powf(least.max(f64::MIN_POSITIVE).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * decade).find(|step| *step >= least).unwrap_or(10.0 * decade)
}

/// Without digits that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Ruler {
    fn new(scale: Scale, values: impl Iterator<Item = f64> + Clone, start: f64, end: f64) -> Self {
        let high = values.clone().fold(f64::MIN_POSITIVE, f64::max);
        let low = match scale {
            Scale::Linear => 0.0,
            Scale::Log => values.fold(high, f64::min),
        };
        Self { scale, low, high, start, end }
    }

    fn at(&self, value: f64) -> f64 {
        let [low, high, value] = [self.low, self.high, value].map(|value| self.scale.apply(value));
        let part = if high > low { (value - low) / (high - low) } else { 0.5 };
        self.start + part * (self.end - self.start)
    }
}

impl Chart {
    /// The picture.
    pub fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| curve.points.iter().copied());
        let x = Ruler::new(self.x.scale, points().map(|(x, _)| x), LEFT, WIDTH - RIGHT);
        let y = Ruler::new(self.y.scale, points().map(|(_, y)| y), HEIGHT - BOTTOM, TOP);
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(&mut svg, (LEFT, 24.0), "start", self.title, " font-size=\"15\"");
        let marks = |axis: &Axis, ruler: &Ruler| match axis.marks.as_slice() {
            [] => axis.round_marks(ruler.low, ruler.high),
            marks => marks.to_vec(),
        };
        for (value, name) in marks(&self.x, &x) {
            let at = x.at(value);
            line(&mut svg, (at, TOP), (at, bottom), "#dddddd");
            text(&mut svg, (at, bottom + 18.0), "middle", &name, "");
        }
        for (value, name) in marks(&self.y, &y) {
            let at = y.at(value);
            line(&mut svg, (LEFT, at), (right, at), "#dddddd");
            text(&mut svg, (LEFT - 6.0, at + 4.0), "end", &name, "");
        }
        line(&mut svg, (LEFT, bottom), (right, bottom), "black");
        line(&mut svg, (LEFT, TOP), (LEFT, bottom), "black");
        text(&mut svg, (f64::midpoint(LEFT, right), HEIGHT - 16.0), "middle", self.x.label, "");
        let middle = f64::midpoint(TOP, bottom);
        text(&mut svg, (18.0, middle), "middle", self.y.label, &format!(" transform=\"rotate(-90 18 {middle})\""));
        for ((curve, colour), row) in self.curves.iter().zip(COLOURS.iter().cycle()).zip(0..) {
            let points: Vec<(f64, f64)> = curve.points.iter().map(|&(px, py)| (x.at(px), y.at(py))).collect();
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
                path.join(" ")
            );
            for (x, y) in points {
                let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
            let at = TOP + 14.0 + 20.0 * f64::from(row);
            let _ = writeln!(
                svg,
                "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>",
                right + 14.0,
                at - 10.0
            );
            text(&mut svg, (right + 32.0, at), "start", &curve.name, "");
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
    let _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>");
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, words: &str, attributes: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{attributes}>{words}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(scale: Scale) -> Axis {
        Axis { label: "of < and &", scale, marks: Vec::new() }
    }

    #[test]
    fn rulers_go_from_end_to_end() {
        let ruler = Ruler::new(Scale::Log, [1.0, 10.0, 100.0].into_iter(), 0.0, 200.0);
        assert_eq!([1.0, 10.0, 100.0].map(|value| ruler.at(value)), [0.0, 100.0, 200.0]);
        let ruler = Ruler::new(Scale::Linear, [20.0, 40.0].into_iter(), 300.0, 100.0);
        assert_eq!([0.0, 20.0, 40.0].map(|value| ruler.at(value)), [300.0, 200.0, 100.0]);
    }

    #[test]
    fn marks_are_round_numbers() {
        let names = |scale, low, high| -> Vec<String> {
            axis(scale).round_marks(low, high).into_iter().map(|(_, name)| name).collect()
        };
        assert_eq!(names(Scale::Linear, 0.0, 47.0), ["0", "10", "20", "30", "40"]);
        assert_eq!(names(Scale::Linear, 0.0, 0.9), ["0", "0.2", "0.4", "0.6", "0.8"]);
        assert_eq!(names(Scale::Log, 3.0, 60.0), ["5", "10", "20", "50"]);
    }

    #[test]
    fn a_chart_shows_every_curve_and_name() {
        let curve = |name: &str| Curve { name: name.into(), points: vec![(1.0, 2.0), (10.0, 3.0)] };
        let chart = Chart {
            title: "a title",
            x: Axis { marks: vec![(1.0, "one".into())], ..axis(Scale::Log) },
            y: axis(Scale::Linear),
            curves: vec![curve("first"), curve("second")],
        };
        let svg = chart.svg();
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 4));
        for words in ["a title", "one", "first", "second", "of &lt; and &amp;"] {
            assert!(svg.contains(words), "{words} is missing in {svg}");
        }
    }
}
