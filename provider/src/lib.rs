//! placeholder
pub mod kernel;
