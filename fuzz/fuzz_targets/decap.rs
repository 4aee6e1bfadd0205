//! Decapsulation of any frame, and encapsulation of what it finds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use podwire_fuzz::{encapsulate_again, walk};

fuzz_target!(|data: &[u8]| {
    walk::decapsulate(data);
    encapsulate_again(data);
});
