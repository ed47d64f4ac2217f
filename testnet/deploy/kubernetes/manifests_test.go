package kubernetes

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// built are the objects that kubectl apply -k would send.
type built struct {
	set      *appsv1.StatefulSet
	services map[string]*corev1.Service
	configs  map[string]*corev1.ConfigMap
	secrets  map[string]*corev1.Secret
	budget   *policyv1.PodDisruptionBudget
	policy   *networkingv1.NetworkPolicy
}

// build copies the manifests beside a secret, as a person would make one, runs kustomize, and decodes strictly: a field that no type has is
// an error.
func build(t *testing.T) built {
	t.Helper()
	dir := t.TempDir()
	names, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), raw)
	}
	write(t, filepath.Join(dir, "secret"), []byte("c2VjcmV0\n"))
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("kustomize: %v", err)
	}
	b := built{services: map[string]*corev1.Service{}, configs: map[string]*corev1.ConfigMap{}, secrets: map[string]*corev1.Secret{}}
	decode := strictDecoder(t)
	for _, r := range resources.Resources() {
		raw, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		obj, err := decode(raw)
		if err != nil {
			t.Errorf("%s: %v", r.CurId(), err)
			continue
		}
		if err := b.add(obj); err != nil {
			t.Error(err)
		}
	}
	if t.Failed() || b.set == nil || b.budget == nil || b.policy == nil {
		t.Fatal("the manifests are not what they should be")
	}
	return b
}

func write(t *testing.T, path string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func strictDecoder(t *testing.T) func([]byte) (runtime.Object, error) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	return func(raw []byte) (runtime.Object, error) {
		obj, _, err := decoder.Decode(raw, nil, nil)
		return obj, err
	}
}

func (b *built) add(obj runtime.Object) error {
	switch o := obj.(type) {
	case *appsv1.StatefulSet:
		b.set = o
	case *corev1.Service:
		b.services[o.Name] = o
	case *corev1.ConfigMap:
		b.configs[o.Name] = o
	case *corev1.Secret:
		b.secrets[o.Name] = o
	case *policyv1.PodDisruptionBudget:
		b.budget = o
	case *networkingv1.NetworkPolicy:
		b.policy = o
	default:
		return fmt.Errorf("a %T is in the manifests, and no test looks at it", obj)
	}
	return nil
}

// node is the one container of a pod.
func (b *built) node() *corev1.Container { return &b.set.Spec.Template.Spec.Containers[0] }

func TestStrictDecodingFindsAMisspeltField(t *testing.T) {
	raw, err := os.ReadFile("statefulset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	decode := strictDecoder(t)
	if _, err := decode(raw); err != nil {
		t.Fatal(err)
	}
	wrong := bytes.Replace(raw, []byte("serviceName:"), []byte("serviceNme:"), 1)
	if _, err := decode(wrong); err == nil || !strings.Contains(err.Error(), "serviceNme") {
		t.Errorf("a misspelt field is answered with %v", err)
	}
}

func TestSelectorsChooseTheNodes(t *testing.T) {
	b := build(t)
	pod := labels.Set(b.set.Spec.Template.Labels)
	chosen := map[string]map[string]string{
		"the stateful set": b.set.Spec.Selector.MatchLabels, "the disruption budget": b.budget.Spec.Selector.MatchLabels,
		"the network policy": b.policy.Spec.PodSelector.MatchLabels,
	}
	for name, s := range b.services {
		chosen["service "+name] = s.Spec.Selector
	}
	for _, c := range b.set.Spec.Template.Spec.TopologySpreadConstraints {
		chosen["the spread over "+c.TopologyKey] = c.LabelSelector.MatchLabels
	}
	for who, selector := range chosen {
		if len(selector) == 0 || !labels.SelectorFromSet(selector).Matches(pod) {
			t.Errorf("%s selects %v, and the pods are %v", who, selector, pod)
		}
	}
	if len(chosen) != 3+2+2 {
		t.Errorf("selectors of %v", slices.Sorted(maps.Keys(chosen)))
	}
}

func TestNodesFindEachOtherBeforeTheyAreReady(t *testing.T) {
	b := build(t)
	headless := b.services[b.set.Spec.ServiceName]
	if headless == nil || headless.Spec.ClusterIP != corev1.ClusterIPNone || !headless.Spec.PublishNotReadyAddresses {
		t.Errorf("the service of the nodes' names is %+v", headless)
	}
	if b.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement {
		t.Error("the founding members would wait for each other for ever")
	}
	config := b.config(t)
	list := regexp.MustCompile(`(?m)^initial_members: \[(.*)\]$`).FindStringSubmatch(config)
	if list == nil {
		t.Fatalf("no initial_members in\n%s", config)
	}
	var want []string
	for i := range *b.set.Spec.Replicas {
		want = append(want, fmt.Sprintf("%s-%d.%s", b.set.Name, i, headless.Name))
	}
	if got := strings.Split(list[1], ", "); !slices.Equal(got, want) {
		t.Errorf("initial_members are %q, and the pods are %q", got, want)
	}
	if !strings.Contains(config, "\njoin: ["+headless.Name+"]\n") {
		t.Error("nodes that are added later do not know whom to join")
	}
}

// config is what the nodes read, from the file that they are started with.
func (b *built) config(t *testing.T) string {
	t.Helper()
	c := b.node()
	i := slices.Index(c.Args, "--config")
	if c.Args[0] != "node" || i < 0 || i == len(c.Args)-1 {
		t.Fatalf("the container runs skein %q", c.Args)
	}
	mount := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(c.Args[i+1]) })
	if mount < 0 {
		t.Fatalf("nothing is mounted where %s lies", c.Args[i+1])
	}
	for _, v := range b.set.Spec.Template.Spec.Volumes {
		if v.Name == c.VolumeMounts[mount].Name && v.ConfigMap != nil && b.configs[v.ConfigMap.Name] != nil {
			return b.configs[v.ConfigMap.Name].Data[filepath.Base(c.Args[i+1])]
		}
	}
	t.Fatal("the configuration's volume names no config map that is there")
	return ""
}

func TestSecretIsGeneratedAndReachesTheNodes(t *testing.T) {
	b := build(t)
	for _, e := range b.node().Env {
		if e.Name != "SKEIN_SECRET" {
			continue
		}
		ref := e.ValueFrom.SecretKeyRef
		secret := b.secrets[ref.Name]
		if secret == nil || len(secret.Data[ref.Key]) == 0 || !strings.HasPrefix(ref.Name, "skein-") {
			t.Errorf("the nodes read key %s of secret %s; there are %v", ref.Key, ref.Name, slices.Sorted(maps.Keys(b.secrets)))
		}
		return
	}
	t.Error("the nodes have no secret")
}

func TestPortsAndProbesMeet(t *testing.T) {
	b := build(t)
	ports := map[string]corev1.ContainerPort{}
	for _, p := range b.node().Ports {
		ports[p.Name] = p
	}
	for name, s := range b.services {
		for _, p := range s.Spec.Ports {
			if to, ok := ports[p.TargetPort.StrVal]; !ok || to.ContainerPort != p.Port || to.Protocol != p.Protocol {
				t.Errorf("service %s: port %s leads to %+v", name, p.Name, to)
			}
		}
	}
	for want, probe := range map[string]*corev1.Probe{
		"/livez": b.node().LivenessProbe, "/readyz": b.node().ReadinessProbe, "/livez ": b.node().StartupProbe,
	} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != strings.TrimSpace(want) || ports[probe.HTTPGet.Port.StrVal].ContainerPort != 8400 {
			t.Errorf("the probe of %s is %+v", want, probe)
		}
	}
	if len(b.services["skein"].Spec.Ports) != 1 || b.services["skein"].Spec.PublishNotReadyAddresses {
		t.Error("clients must be led to nodes that are ready, and to HTTP alone")
	}
}

// TestNodesLeaveInGoodOrder: the grace period holds the pause before SIGTERM, 30 s of handing over and 23 s of stopping, and one node at a
// time is gone.
func TestNodesLeaveInGoodOrder(t *testing.T) {
	b := build(t)
	stop := b.node().Lifecycle.PreStop
	if stop == nil || stop.Sleep == nil || stop.Sleep.Seconds < 3 {
		t.Fatalf("before it stops a node does %+v", stop)
	}
	if grace := *b.set.Spec.Template.Spec.TerminationGracePeriodSeconds; grace < stop.Sleep.Seconds+30+23 {
		t.Errorf("a node has %d s to leave", grace)
	}
	if b.budget.Spec.MaxUnavailable == nil || b.budget.Spec.MaxUnavailable.IntValue() != 1 || b.set.Spec.MinReadySeconds < 10 {
		t.Errorf("the budget is %+v, and the next node follows after %d s", b.budget.Spec, b.set.Spec.MinReadySeconds)
	}
}

func TestPodsMayDoNothingTheyNeedNot(t *testing.T) {
	b := build(t)
	pod, c := b.set.Spec.Template.Spec.SecurityContext, b.node().SecurityContext
	if !*pod.RunAsNonRoot || *pod.RunAsUser == 0 || *pod.FSGroup != *pod.RunAsUser || pod.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod runs as %+v", pod)
	}
	if *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(c.Capabilities.Add) > 0 {
		t.Errorf("the container runs as %+v", c)
	}
	data := slices.IndexFunc(b.set.Spec.VolumeClaimTemplates, func(p corev1.PersistentVolumeClaim) bool { return p.Name == "data" })
	mount := slices.IndexFunc(b.node().VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "data" })
	dir := slices.IndexFunc(b.node().Env, func(e corev1.EnvVar) bool { return e.Name == "SKEIN_DATA_DIR" })
	if data < 0 || mount < 0 || dir < 0 || !strings.HasPrefix(b.node().Env[dir].Value, b.node().VolumeMounts[mount].MountPath+"/") {
		t.Error("the data does not lie on the volume")
	}
}
