{{- /* Names are quoted: a namespace or a release may be called 123, which YAML reads as a number. */}}
{{- define "grpo-operator.labels" -}}
app.kubernetes.io/name: grpo-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ include "grpo-operator.labelValue" .Chart.AppVersion | quote }}
helm.sh/chart: {{ include "grpo-operator.labelValue" (printf "%s-%s" .Chart.Name .Chart.Version) | quote }}
{{- end }}

{{- /* A version may have a part after +, which a label may not: Flux adds the digest of a chart so. */}}
{{- define "grpo-operator.labelValue" -}}
{{- regexReplaceAll "[^A-Za-z0-9]+$" (. | replace "+" "_" | trunc 63) "" -}}
{{- end }}

{{- define "grpo-operator.selector" -}}
app.kubernetes.io/name: grpo-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- /* The image of a process: (list . key name). The key is its value's, the name is the registry's.
     `helm upgrade --reuse-values` brings values of a chart that had neither registry nor tag. */}}
{{- define "grpo-operator.image" -}}
{{- $images := (index . 0).Values.images -}}
{{- default (printf "%s/%s:%s" (default "grpo.dev" $images.registry) (index . 2) (default "dev" $images.tag)) (index $images (index . 1)) -}}
{{- end }}

{{/* Name of what is the cluster's, and not a namespace's: two installations share none. */}}
{{- define "grpo-operator.clusterName" -}}
grpo-operator:{{ .Release.Namespace }}
{{- end }}
