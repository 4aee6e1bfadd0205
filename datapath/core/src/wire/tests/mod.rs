//! Tests of the wire formats.

mod encapsulation;
