package fakespdk

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/uuid"

	"nvmecr/internal/jsonrpc"
)

// arguments has the parameters of all methods. Each method uses its own.
type arguments struct {
	NQN      string  `json:"nqn"`
	Host     string  `json:"host"`
	AllowAny bool    `json:"allow_any_host"`
	Serial   string  `json:"serial_number"`
	Model    string  `json:"model_number"`
	Max      uint32  `json:"max_namespaces"`
	Listen   address `json:"listen_address"`
	Space    struct {
		NSID uint32 `json:"nsid"`
		Bdev string `json:"bdev_name"`
		UUID string `json:"uuid"`
	} `json:"namespace"`
	Name    string  `json:"name"`
	Limit   *uint64 `json:"rw_mbytes_per_sec"`
	OldName string  `json:"old_name"`
	NewName string  `json:"new_name"`
	Lvol    string  `json:"lvol_name"`
	Store   string  `json:"lvs_name"`
	UUID    string  `json:"uuid"`
	Size    uint64  `json:"size_in_mib"`
	Thin    bool    `json:"thin_provision"`
	Clear   string  `json:"clear_method"`
	Path    string  `json:"path"`
	Key     string  `json:"dhchap_key"`
	CtrlKey string  `json:"dhchap_ctrlr_key"`
}

// call executes a method.
func (t *Target) call(method string, params json.RawMessage) (any, error) {
	var a arguments
	if err := jsonrpc.Unmarshal(params, &a); err != nil {
		return nil, invalid()
	}
	switch method {
	case "bdev_lvol_get_lvstores":
		return t.stores(), nil
	case "bdev_get_bdevs":
		if a.Name != "" && t.find(a.Name) == nil {
			return nil, errno(syscall.ENODEV)
		}
		return t.bdevs(), nil
	case "nvmf_get_subsystems":
		return t.subsystems, nil
	case "bdev_lvol_create":
		return t.createVolume(&a)
	case "bdev_lvol_rename":
		return true, t.rename(a.OldName, a.NewName)
	case "bdev_lvol_delete":
		return true, t.deleteVolume(a.Name)
	case "bdev_set_qos_limit":
		v := t.find(a.Name)
		if v == nil || a.Limit == nil {
			return nil, errno(syscall.ENODEV)
		}
		v.limit = *a.Limit
		return true, nil
	case "keyring_get_keys":
		return slices.Clone(t.keys), nil
	case "keyring_file_add_key":
		return true, t.addKey(&a)
	case "keyring_file_remove_key":
		i := slices.IndexFunc(t.keys, func(k key) bool { return k.Name == a.Name })
		if i < 0 {
			return nil, errno(syscall.ENOKEY)
		}
		t.keys = slices.Delete(t.keys, i, i+1)
		return true, nil
	case "nvmf_create_subsystem":
		return true, t.createSubsystem(&a)
	}
	i := slices.IndexFunc(t.subsystems, func(s *subsystem) bool { return s.NQN == a.NQN })
	switch {
	case !strings.HasPrefix(method, "nvmf_"):
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found"}
	case i < 0:
		return nil, invalid()
	case method == "nvmf_delete_subsystem":
		t.subsystems[i].destroyed = true
		t.subsystems = slices.Delete(t.subsystems, i, i+1)
		return true, nil
	}
	return t.alter(t.subsystems[i], method, &a)
}

// alter executes methods that change a subsystem.
func (t *Target) alter(s *subsystem, method string, a *arguments) (any, error) {
	switch method {
	case "nvmf_subsystem_allow_any_host":
		s.AllowAny = a.AllowAny
	case "nvmf_subsystem_add_listener":
		if slices.Contains(s.Listen, a.Listen) {
			return nil, invalid()
		}
		s.Listen = append(s.Listen, a.Listen)
	case "nvmf_subsystem_add_ns":
		v := t.find(a.Space.Bdev)
		if v == nil || slices.ContainsFunc(s.Spaces, func(n space) bool { return n.NSID == a.Space.NSID }) || a.Space.NSID > s.Max {
			return nil, invalid()
		}
		s.Spaces = append(s.Spaces, space{a.Space.NSID, v.uuid, v.uuid, a.Space.UUID})
		return a.Space.NSID, nil
	case "nvmf_subsystem_add_host":
		if s.allows(a.Host) && !s.AllowAny {
			return nil, internal("Internal error")
		}
		for _, name := range []string{a.Key, a.CtrlKey} {
			if name != "" && !slices.ContainsFunc(t.keys, func(k key) bool { return k.Name == name }) {
				return nil, invalid()
			}
		}
		s.Hosts = append(s.Hosts, host{a.Host, a.Key, a.CtrlKey})
	case "nvmf_subsystem_remove_host":
		i := slices.Index(s.Hosts, s.host(a.Host))
		if i < 0 {
			return nil, internal("Internal error")
		}
		s.Hosts = slices.Delete(s.Hosts, i, i+1)
	default:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found"}
	}
	return true, nil
}

func (t *Target) addKey(a *arguments) error {
	info, err := os.Stat(a.Path)
	switch {
	case strings.Contains(a.Name, ":"):
		return errno(syscall.EINVAL)
	case slices.ContainsFunc(t.keys, func(k key) bool { return k.Name == a.Name }):
		return errno(syscall.EEXIST)
	case err != nil || !filepath.IsAbs(a.Path) || info.Mode().Perm() != 0o600:
		return errno(syscall.EPERM)
	}
	t.keys = append(t.keys, key{a.Name, a.Path})
	return nil
}

func (t *Target) createSubsystem(a *arguments) error {
	if slices.ContainsFunc(t.subsystems, func(s *subsystem) bool { return s.NQN == a.NQN }) {
		return internal("Unable to create subsystem %s", a.NQN)
	}
	if a.Max == 0 {
		a.Max = 32
	}
	t.subsystems = append(t.subsystems, &subsystem{NQN: a.NQN, Subtype: "NVMe", AllowAny: a.AllowAny, Serial: a.Serial,
		Model: a.Model, Max: a.Max, Listen: []address{}, Hosts: []host{}, Spaces: []space{}})
	return nil
}

func (t *Target) stores() any {
	free := 0
	for _, used := range t.used {
		if !used {
			free++
		}
	}
	return []map[string]any{{"uuid": t.store, "name": "lvs0", "base_bdev": "Malloc0", "cluster_size": Cluster, "free_clusters": free,
		"total_data_clusters": len(t.used), "block_size": Block}}
}

func (t *Target) bdevs() any {
	list := []map[string]any{{"name": "Malloc0", "aliases": []string{uuid.NewString()}, "block_size": Block, "num_blocks": len(t.medium) / Block,
		"assigned_rate_limits": map[string]uint64{"rw_mbytes_per_sec": 0}}}
	for _, v := range t.volumes {
		list = append(list, map[string]any{
			"name": v.uuid, "uuid": v.uuid, "aliases": []string{"lvs0/" + v.name}, "product_name": "Logical Volume",
			"block_size": Block, "num_blocks": v.size * int(Cluster) / Block,
			"driver_specific":      map[string]any{"lvol": map[string]any{"lvol_store_uuid": t.store, "num_allocated_clusters": len(v.clusters)}},
			"assigned_rate_limits": map[string]uint64{"rw_ios_per_sec": 0, "rw_mbytes_per_sec": v.limit},
		})
	}
	return list
}

func (t *Target) createVolume(a *arguments) (any, error) {
	if a.UUID != t.store && a.Store != "lvs0" || a.UUID != "" && a.Store != "" {
		return nil, errno(syscall.ENODEV)
	}
	switch {
	case a.Lvol == "" || len(a.Lvol) > 63:
		return nil, errno(syscall.EINVAL)
	case t.taken(a.Lvol):
		return nil, errno(syscall.EEXIST)
	}
	v := &volume{uuid: uuid.NewString(), name: a.Lvol, size: int(a.Size), zeroes: a.Clear == "write_zeroes"}
	for i := range t.used {
		if !t.used[i] && len(v.clusters) < v.size && !a.Thin {
			v.clusters = append(v.clusters, i)
		}
	}
	if len(v.clusters) < v.size && !a.Thin {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "No space left on device"}
	}
	for _, i := range v.clusters {
		t.used[i] = true
	}
	t.volumes = append(t.volumes, v)
	return v.uuid, nil
}

func (t *Target) rename(name, to string) error {
	v := t.find(name)
	switch {
	case v == nil:
		return errno(syscall.ENODEV)
	case t.taken(to) && v.name != to:
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "File exists"}
	case len(to) > 63:
		return errno(syscall.EINVAL)
	}
	v.name = to
	return nil
}

func (t *Target) deleteVolume(name string) error {
	v := t.find(name)
	switch {
	case find(t.deleting, name) != nil:
		return internal("Invalid argument")
	case v == nil:
		return errno(syscall.ENODEV)
	}
	t.begin(v)
	t.end(v)
	return nil
}

// begin and end are the two halves of deleting a volume.
func (t *Target) begin(v *volume) {
	for _, s := range t.subsystems {
		s.Spaces = slices.DeleteFunc(s.Spaces, func(n space) bool { return n.Bdev == v.uuid })
	}
	t.volumes = slices.DeleteFunc(t.volumes, func(x *volume) bool { return x == v })
	t.deleting = append(t.deleting, v)
}

func (t *Target) end(v *volume) {
	for _, i := range v.clusters {
		t.used[i] = false
		if v.zeroes {
			clear(t.medium[i*int(Cluster) : (i+1)*int(Cluster)])
		}
	}
	t.deleting = slices.DeleteFunc(t.deleting, func(x *volume) bool { return x == v })
}
