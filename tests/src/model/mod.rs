//! What the differential test compares the kernel with: random rules and frames, and the reference model of what
//! the datapath does with them.

pub mod copy;
pub mod desired;
pub mod frame;
pub mod random;
