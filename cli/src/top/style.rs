//! Styles of the view.

use ratatui::style::{Color, Modifier, Style};

pub(super) const DIM: Style = Style::new().add_modifier(Modifier::DIM);
pub(super) const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
pub(super) const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);
/// Style of trouble that grows.
pub(super) const TROUBLE: Style = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
/// Style of queue pairs in an error state.
pub(super) const ERROR: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
