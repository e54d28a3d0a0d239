//! Texts that C reads: error descriptions above all.

use std::{
    cell::RefCell,
    ffi::{CStr, CString, c_char},
};

thread_local! {
    /// The text given last: C may keep it until it asks again on the same thread.
    static LAST: RefCell<CString> = RefCell::default();
}

/// What is told where a thread keeps no texts any more.
const NO_TEXT: &CStr = c"an error: its text needs a buffer in a thread that ends";

/// Gives `text` to C: as much as fits in its buffer, if it has one, and the whole of it
/// as the answer otherwise. Handlers of `exit` come after the end of the thread's own data.
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
    let kept = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        *last = text;
        last.as_ptr()
    });
    kept.unwrap_or(NO_TEXT.as_ptr())
}
