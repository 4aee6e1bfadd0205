//! Placeholder.
pub mod compile;
