//! What the kernel side and the user side of podwire share: one truth for map rows ([`abi`]), wire formats
//! ([`wire`]), the pipeline ([`stage`]) and the fast path's meeting point ([`xsk`]).
//!
//! The crate is `no_std`, allocates nothing and depends on nothing. The BPF programs, the library, the tests'
//! reference model and the fuzz targets all run this same code.
//!
//! # Rules for what lives here
//! - Map rows are `#[repr(C)]`, without hidden padding, without `Option`, `bool` or enums with data.
//! - Bytes taken from packets stay in network order until a function says otherwise.
//! - Nothing panics on a packet's path: short or odd input is a value (`None` or an error), never an abort.
#![no_std]
#![forbid(unsafe_code)]

pub mod abi;
pub mod stage;
pub mod wire;
pub mod xsk;
