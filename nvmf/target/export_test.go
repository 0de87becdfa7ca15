package target

import "time"

// Admit lets tests connect through sockets that were not accepted.
var Admit = (*Target).admit

// SetPatience shortens the time that a host has to send Connect.
func SetPatience(t *Target, d time.Duration) { t.patience = d }
