package parttable

// A signature identifies a format of other software.
type signature struct {
	at    int
	bytes string
	what  string
}

// signatures are those of common formats. All are within signatureSpan.
var signatures = []signature{
	{0x438, "\x53\xef", "an ext2, ext3 or ext4 file system"},
	{0, "XFSB", "an XFS file system"},
	{0x10040, "_BHRfS_M", "a btrfs file system"},
	{512, "EFI PART", "a GPT partition table"},
	{4096, "EFI PART", "a GPT partition table"},
	{510, "\x55\xaa", "an MBR partition table"},
	{512, "LABELONE", "an LVM physical volume"},
	{0, "LUKS\xba\xbe", "a LUKS volume"},
	{4096, "\xfc\x4e\x2b\xa9", "an md RAID member"},
	{0, "SPDKBLOB", "an SPDK blobstore"},
	{0xff6, "SWAPSPACE2", "swap space"},
}

// signatureSpan is the number of bytes needed to check the signatures.
const signatureSpan = 0x10040 + 8

// foreign returns the name of the format that head, the start of a namespace, has a signature of, or "".
func foreign(head []byte) string {
	for _, s := range signatures {
		if end := s.at + len(s.bytes); end <= len(head) && string(head[s.at:end]) == s.bytes {
			return s.what
		}
	}
	return ""
}
