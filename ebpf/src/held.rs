//! Observations of a packet that is told of only if it is dropped. In: what its stages did so far. Out: all of it, before
//! the drop; nothing, when the next packet begins.
//!
//! The stages of a node follow each other on one CPU, unless a tool or the host's stack has the packet in between: what
//! was kept before is then another packet's by the time of the drop, and is not told.

use podwire_core::abi::{Class, ObservationRow};

use crate::{maps, watch};

/// A packet begins.
#[inline(always)]
pub fn forget() {
    if let Some(count) = maps::HELD_COUNT.get_ptr_mut(0) {
        // SAFETY: a per-CPU row; the program is not interrupted by another one on this CPU's hooks.
        unsafe { *count = 0 };
    }
}

/// Keeps an observation. What does not fit is left out: no packet has so many.
#[inline(always)]
pub fn keep(row: &ObservationRow) {
    let Some(count) = maps::HELD_COUNT.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: as in `forget`.
    unsafe {
        if let Some(place) = maps::HELD.get_ptr_mut(*count) {
            *place = *row;
            *count += 1;
        }
    }
}

/// Tells what was kept of the packet of row 0 of `OBSERVATION`, and its drop.
#[inline(always)]
pub fn tell() {
    let (Some(count), Some(draft)) = (maps::HELD_COUNT.get_ptr_mut(0), maps::OBSERVATION.get_ptr_mut(0))
    else {
        return;
    };
    // SAFETY: as in `forget`.
    let (kept, dropped) = unsafe { (core::ptr::replace(count, 0), &mut (*draft).row) };
    for number in 0..maps::HELD_ROWS {
        if number >= kept {
            break;
        }
        let Some(row) = maps::HELD.get_ptr_mut(number) else {
            break;
        };
        // SAFETY: as in `forget`.
        let row = unsafe { &mut *row };
        if row.trace == dropped.trace && row.identity == dropped.identity {
            watch::send(Class::Traces, row, 0);
        }
    }
    watch::send(Class::Traces, dropped, 0);
}
