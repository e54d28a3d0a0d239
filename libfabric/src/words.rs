//! Texts that C reads: error descriptions above all.

use std::{
    cell::RefCell,
    ffi::{CString, c_char},
};

thread_local! {
    /// The text given last: C may keep it until it asks again on the same thread.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Gives `text` to C: as much as fits in its buffer, if it has one, and the whole of it
/// as the answer otherwise.
///
/// # Safety
/// `buffer` is null or valid for writes of `length` bytes.
pub unsafe fn tell(text: &str, buffer: *mut c_char, length: usize) -> *const c_char {
    let text: Vec<u8> = text.bytes().filter(|&byte| byte != 0).collect();
    if !buffer.is_null() && length > 0 {
        let fitting = text.len().min(length - 1);
        // SAFETY: the buffer takes `fitting` bytes and a zero byte.
        unsafe {
            buffer.copy_from_nonoverlapping(text.as_ptr().cast(), fitting);
            buffer.add(fitting).write(0);
        }
        return buffer;
    }
    // There is no zero byte left that it could be refused for.
    let text = CString::new(text).unwrap_or_default();
    LAST.with_borrow_mut(|last| {
        *last = text;
        last.as_ptr()
    })
}
