//! The diagram as a page: SVG that any browser draws.

use std::fmt::Write;

use super::ladder::{Kind, Ladder, Row};

const LEFT: usize = 120;
const RIGHT: usize = 820;
const ROW: usize = 34;
const LINE: usize = 16;
const TOP: usize = 60;

pub(super) fn draw(ladder: &Ladder) -> String {
    let height = TOP + ladder.rows.iter().map(height).sum::<usize>() + ROW;
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0} and {1}</title>\n<style>\n\
         text {{ font: 12px monospace }}\n.request {{ stroke: #1f5fa8 }}\n.again {{ stroke: #c46a00 }}\n\
         .response {{ stroke: #2b7a3d }}\n.nak {{ stroke: #c01c28 }}\n.note {{ fill: #555 }}\n\
         line {{ stroke-width: 1.5 }}\n.end {{ stroke: #888 }}\n.lost {{ stroke-dasharray: 4 4 }}\n\
         </style></head><body>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1000\" height=\"{height}\">\n\
         <defs><marker id=\"tip\" orient=\"auto-start-reverse\" markerWidth=\"9\" markerHeight=\"9\" refX=\"8\" refY=\"4\">\
         <path d=\"M0,0 L9,4 L0,8 z\"/></marker></defs>\n",
        escaped(&ladder.left),
        escaped(&ladder.right)
    );
    // Writing to a string cannot fail.
    for (x, name) in [(LEFT, &ladder.left), (RIGHT, &ladder.right)] {
        let _ = writeln!(out, "<text x=\"{x}\" y=\"30\" text-anchor=\"middle\">{}</text>", escaped(name));
        let _ = writeln!(out, "<line class=\"end\" x1=\"{x}\" y1=\"40\" x2=\"{x}\" y2=\"{height}\"/>");
    }
    let mut y = TOP;
    for row in &ladder.rows {
        y += ROW;
        let (from, to) = if row.there { (LEFT, RIGHT) } else { (RIGHT, LEFT) };
        // What is lost ends halfway.
        let to = if row.lost { (LEFT + RIGHT) / 2 } else { to };
        let lost = if row.lost { " lost" } else { "" };
        let (class, middle) = (class(row), (LEFT + RIGHT) / 2);
        let _ = writeln!(out, "<text x=\"8\" y=\"{}\">{:.6}</text>", y + 4, row.at.as_secs_f64());
        let _ = writeln!(
            out,
            "<line class=\"{class}{lost}\" x1=\"{from}\" y1=\"{y}\" x2=\"{to}\" y2=\"{y}\" marker-end=\"url(#tip)\"/>"
        );
        let _ =
            writeln!(out, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>", y - 6, escaped(&row.label));
        for comment in &row.comments {
            y += LINE;
            let _ = writeln!(out, "<text class=\"note\" x=\"{}\" y=\"{y}\">{}</text>", LEFT + 16, escaped(comment));
        }
    }
    out += "</svg>\n</body></html>\n";
    out
}

fn height(row: &Row) -> usize {
    ROW + LINE * row.comments.len()
}

const fn class(row: &Row) -> &'static str {
    match row.kind {
        Kind::Request => "request",
        Kind::Again => "again",
        Kind::Response => "response",
        Kind::Nak => "nak",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
