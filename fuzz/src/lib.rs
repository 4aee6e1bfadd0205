//! What the fuzz targets check. In: any bytes. Out: nothing, or a panic that says which promise broke.
//!
//! A target is one file in `fuzz_targets/`, one `[[bin]]` in `Cargo.toml` and seeds in `corpus/<target>/`.

#![forbid(unsafe_code)]

mod again;
pub mod collect;

/// The checks that podwire-core's own tests run on short, damaged and random bytes.
#[path = "../../datapath/core/src/wire/tests/walk.rs"]
pub mod walk;

pub use again::encapsulate_again;

// `walk` names what it reads as its own crate does.
use podwire_core::wire;
