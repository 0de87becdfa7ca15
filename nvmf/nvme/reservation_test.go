package nvme_test

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nvmecr/nvmf/nvme"
)

// TestReservationCommandBytes compares commands with bytes taken from the
// specification's figures, field by field.
func TestReservationCommandBytes(t *testing.T) {
	var s nvme.SQE
	for _, x := range []struct {
		opcode uint8
		c      nvme.ReservationCommand
		want   string // dword 10
	}{
		{nvme.IOReservationReg, nvme.ReservationCommand{}, "00000000"},
		{nvme.IOReservationReg, nvme.ReservationCommand{Action: nvme.ReservationUnregister}, "01000000"},
		{nvme.IOReservationReg, nvme.ReservationCommand{Action: nvme.ReservationReplace, IgnoreKey: true, Persist: nvme.PersistOff}, "0a000080"},
		{nvme.IOReservationReg, nvme.ReservationCommand{Persist: nvme.PersistOn}, "000000c0"},
		{nvme.IOReservationAcquire, nvme.ReservationCommand{Type: nvme.WriteExclusive}, "00010000"},
		{nvme.IOReservationAcquire, nvme.ReservationCommand{Action: nvme.ReservationPreempt, Type: nvme.ExclusiveAccessAllRegistrants}, "01060000"},
		{nvme.IOReservationAcquire, nvme.ReservationCommand{Action: nvme.ReservationPreemptAbort, Type: nvme.WriteExclusive}, "02010000"},
		{nvme.IOReservationRelease, nvme.ReservationCommand{Action: nvme.ReservationClear, IgnoreKey: true, Type: 0xff}, "09ff0000"},
	} {
		s.Reset(x.opcode, 7, 1)
		s.SetReservation(x.c)
		assert.Equal(t, x.want, hex.EncodeToString(s[40:44]))
		assert.Equal(t, x.c, s.Reservation())
	}
	assert.Equal(t, []uint8{0x0d, 0x0e, 0x11, 0x15},
		[]uint8{nvme.IOReservationReg, nvme.IOReservationReport, nvme.IOReservationAcquire, nvme.IOReservationRelease})

	s.Reset(nvme.IOReservationReport, 7, 1)
	s.SetReservationReport(4096, true)
	assert.Equal(t, "ff03000001000000", hex.EncodeToString(s[40:48]))
	length, extended := s.ReservationReport()
	assert.EqualValues(t, 4096, length)
	assert.True(t, extended)
	s.SetReservationReport(4, false)
	length, extended = s.ReservationReport()
	assert.EqualValues(t, 4, length)
	assert.False(t, extended)
	s.SetCDW(10, 0xffffffff)
	length, _ = s.ReservationReport()
	assert.EqualValues(t, 16<<30, length)

	var k nvme.ReservationKeys
	k.Set(0x0102030405060708, 0x1112131415161718)
	assert.Equal(t, "08070605040302011817161514131211", hex.EncodeToString(k[:]))
	assert.EqualValues(t, 0x0102030405060708, k.Current())
	assert.EqualValues(t, 0x1112131415161718, k.Other())
	var one nvme.ReservationKey
	one.Set(0x0102030405060708)
	assert.Equal(t, "0807060504030201", hex.EncodeToString(one[:]))
	assert.EqualValues(t, 0x0102030405060708, one.Current())
}

// report is two registrants, the first of whom holds Write Exclusive.
const report = "05000000" + "01" + "0200" + "0000" + "01" + // GEN, RTYPE, registrants, reserved, PTPLS
	"000000000000000000000000000000000000000000000000000000" + "000000000000000000000000000000000000000000000000000000" +
	"ffff" + "01" + "0000000000" + "0807060504030201" + "000102030405060708090a0b0c0d0e0f" +
	"0000000000000000000000000000000000000000000000000000000000000000" +
	"0300" + "00" + "0000000000" + "1100000000000000" + "ff0102030405060708090a0b0c0d0e0f" +
	"0000000000000000000000000000000000000000000000000000000000000000"

func TestReservationStatus(t *testing.T) {
	want := nvme.ReservationStatus{Generation: 5, Type: nvme.WriteExclusive, Persists: true, Registrants: []nvme.Registrant{
		{CNTLID: 0xffff, Holder: true, Key: 0x0102030405060708, HostID: [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
		{CNTLID: 3, Key: 0x11, HostID: [16]byte{255, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
	}}
	assert.Equal(t, report, hex.EncodeToString(want.Append(nil)))
	b, err := hex.DecodeString(report)
	require.NoError(t, err)
	got, total, ok := nvme.ReservationStatusOf(b)
	assert.True(t, ok)
	assert.Equal(t, 2, total)
	assert.Equal(t, want, got)
	assert.Equal(t, append([]byte{9}, b...), want.Append([]byte{9}))

	got, total, ok = nvme.ReservationStatusOf(b[:191])
	assert.True(t, ok)
	assert.Equal(t, 2, total, "there are more than fit")
	assert.Len(t, got.Registrants, 1)
	_, _, ok = nvme.ReservationStatusOf(b[:63])
	assert.False(t, ok)
}

func TestReservationTypes(t *testing.T) {
	assert.Equal(t, "Write Exclusive", nvme.WriteExclusive.String())
	assert.Equal(t, "Exclusive Access - All Registrants", nvme.ExclusiveAccessAllRegistrants.String())
	assert.Equal(t, "no reservation", nvme.ReservationType(0).String())
	assert.Equal(t, "reservation type 0x7", nvme.ReservationType(7).String())
	assert.False(t, nvme.ReservationType(0).Valid())
	assert.False(t, nvme.ReservationType(7).Valid())
}

// FuzzReservationStatus decodes arbitrary bytes.
func FuzzReservationStatus(f *testing.F) {
	b, err := hex.DecodeString(report)
	require.NoError(f, err)
	f.Add(b)
	f.Add(b[:64])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, total, ok := nvme.ReservationStatusOf(b)
		if !ok {
			assert.Less(t, len(b), nvme.ReservationReportHeader)
			return
		}
		assert.LessOrEqual(t, len(r.Registrants), total)
		again, _, _ := nvme.ReservationStatusOf(r.Append(nil))
		assert.Equal(t, r.Registrants, again.Registrants)
		assert.Equal(t, r.Type, again.Type)
		_ = r.Type.String()
	})
}
