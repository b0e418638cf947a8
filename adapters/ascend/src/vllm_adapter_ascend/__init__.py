"""Huawei Ascend NPUs as devices."""
