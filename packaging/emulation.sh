#!/usr/bin/env bash
# Lets the kernel start programs of aarch64 under qemu, which must be installed (packages.txt). Needs root. Source this file.
#   start_emulation    registers qemu, unless it is registered already
#   end_emulation      undoes that; call it when the script ends

emulation_formats=/proc/sys/fs/binfmt_misc
emulation_is_ours=

# The flag F opens qemu now, so that programs find it in every root folder and container.
start_emulation() {
  [[ ! -e $emulation_formats/farandole-aarch64 ]] || return 0
  [[ -e $emulation_formats/register ]] || mount -t binfmt_misc none $emulation_formats
  local magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  printf '%s' ":farandole-aarch64:M::$magic:$mask:/usr/bin/qemu-aarch64-static:F" >$emulation_formats/register
  emulation_is_ours=1
}

end_emulation() {
  [[ -z $emulation_is_ours ]] || echo -1 >$emulation_formats/farandole-aarch64
  emulation_is_ours=
}
