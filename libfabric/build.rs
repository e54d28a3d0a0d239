//! Tells the linker that the library stays mapped once it is loaded.

fn main() {
    // libfabric unloads its providers when the process exits. Threads of a domain that the
    // application never closed run on for a moment, and must find their code there.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
