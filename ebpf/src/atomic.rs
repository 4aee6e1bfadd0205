//! Numbers that all CPUs change. The compiler's own atomic operations stop at plain loads and stores for this
//! target, though the machine has had these since Linux 5.12.

#[cfg(target_arch = "bpf")]
use core::arch::asm;

/// Adds to a number and returns what it was.
///
/// # Safety
/// `number` must point into a map row and be aligned to eight bytes.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub unsafe fn fetch_add(number: *mut u64, more: u64) -> u64 {
    let mut value = more;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("{value} = atomic_fetch_add((u64 *)({number} + 0), {value})", number = in(reg) number, value = inout(reg) value);
    }
    value
}

/// Replaces `old` by `new` and returns what was there.
///
/// # Safety
/// As [`fetch_add`].
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub unsafe fn compare_exchange(number: *mut u64, old: u64, new: u64) -> u64 {
    let mut value = old;
    // SAFETY: the caller's promise; the instruction compares with r0 and leaves the old value there.
    unsafe {
        asm!("r0 = cmpxchg_64({number} + 0, r0, {new})", number = in(reg) number, new = in(reg) new, inout("r0") value);
    }
    value
}

/// On the host the crate is only checked.
///
/// # Safety
/// As on the real target.
#[cfg(not(target_arch = "bpf"))]
pub unsafe fn fetch_add(number: *mut u64, more: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { core::sync::atomic::AtomicU64::from_ptr(number) }
        .fetch_add(more, core::sync::atomic::Ordering::Relaxed)
}

/// On the host the crate is only checked.
///
/// # Safety
/// As on the real target.
#[cfg(not(target_arch = "bpf"))]
pub unsafe fn compare_exchange(number: *mut u64, old: u64, new: u64) -> u64 {
    use core::sync::atomic::{AtomicU64, Ordering};
    // SAFETY: the caller's promise.
    match unsafe { AtomicU64::from_ptr(number) }.compare_exchange(
        old,
        new,
        Ordering::Relaxed,
        Ordering::Relaxed,
    ) {
        Ok(value) | Err(value) => value,
    }
}
