//! The image of the library's own kernels. `conformance` tests each kernel's behaviour on every GPU
//! runtime.

use gdsync::Gpu;
use gdsync::gpu::{Dims, KERNELS};
use gdsync::internals::Entry;

#[test]
fn every_kernel_is_in_the_module_with_its_parameter() {
    let ptx = KERNELS.ptx().unwrap();
    for entry in Entry::ALL {
        let head = format!(
            ".visible .entry {name}(\n\t.param .align 8 .b8 {name}_param_0[{size}]\n)",
            name = entry.name(),
            size = entry.param_size(),
        );
        assert!(ptx.contains(&head), "{head}");
    }
    assert_eq!(ptx.matches(".entry").count(), Entry::ALL.len());
}

#[test]
fn kernel_that_the_image_lacks_is_refused() {
    let gpu = Gpu::soft().unwrap();
    let module = gpu.load(&KERNELS).unwrap();
    module.kernel("gds_fill").unwrap();
    let error = module.kernel("gds_no_such").unwrap_err();
    assert_eq!(error.kind(), gdsync::Kind::Invalid);
    assert!(
        error.to_string().contains("no kernel \"gds_no_such\""),
        "{error}"
    );
    assert_eq!(gpu.dims_for(1 << 20), Dims::linear(1, 1));
}
