//! Printing of explanations.

use urxe_options::Format;

use super::line::Line;
use super::{held, record};
use crate::messages;

impl Line<'_> {
    /// Prints the explanation, or keeps it for the end of the process.
    pub(super) fn print(&self, format: Format) {
        record::add(|| self.recorded(format));
        let text = self.rendered(format);
        match format {
            Format::Held => held::hold(text),
            Format::Text | Format::Json => messages::print(&text),
        }
    }
}
