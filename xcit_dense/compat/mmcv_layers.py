"""The layers that mmdet and mmsegmentation take from mmcv, from torchvision or in plain torch.

Names and arguments are those of mmcv's compiled module; outputs and gradients are written in place, as there. Half
types are computed in float32. Most gradients are those of the forward pass, done again.
"""
import math

import torch
import torch.nn.functional as F


def add_gradients(grads, function, inputs, grad_output):
    """Add the gradients of ``function(*inputs)`` by its inputs to ``grads``."""
    device = summing_device(grad_output)
    with torch.enable_grad():
        inputs = [one.detach().to(device).requires_grad_() for one in inputs]
        output = function(*inputs)
        found = torch.autograd.grad(output, inputs, grad_output.to(output))
    for grad, one in zip(grads, found, strict=True):
        grad += one.to(grad.device)


def summing_device(grad):
    """Return where gradients are summed: a GPU does so in any order, so in deterministic mode it is the CPU."""
    return 'cpu' if grad.is_cuda and torch.are_deterministic_algorithms_enabled() else grad.device


def single(tensor):
    """Return half types as float32, others as they are."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def deform_conv_forward(input, weight, offset, output, columns, ones, **kwargs):
    """Write the deformable convolution of (B, C, H, W) into ``output`` (Dai et al. 2017)."""
    output.copy_(_deform([input, weight, offset, None, None], **kwargs))


def deform_conv_backward_input(input, offset, grad_output, grad_input, grad_offset, weight, columns, **kwargs):
    """Add the gradients of input and offset."""
    _deform([input, weight, offset, None, None], [grad_input, None, grad_offset, None, None], grad_output, **kwargs)


def deform_conv_backward_parameters(input, offset, grad_output, grad_weight, columns, ones, scale, **kwargs):
    """Add ``scale`` times the gradient of the weight, in which the output is linear: its value does not matter."""
    _deform([input, torch.zeros_like(grad_weight), offset, None, None], [None, grad_weight, None, None, None],
            scale * grad_output, **kwargs)


def _deform(*words, kW, kH, dW, dH, padW, padH, dilationW, dilationH, group, deformable_group, im2col_step):
    return _convolve(*words, geometry=(dH, dW, padH, padW, dilationH, dilationW, group, deformable_group))


def modulated_deform_conv_forward(input, weight, bias, ones, offset, mask, output, columns, **kwargs):
    """Write the deformable convolution with a factor for each sample, mask, into ``output`` (Zhu et al. 2019)."""
    output.copy_(_modulate(output.shape[2:], [input, weight, offset, mask, bias], **kwargs))


def modulated_deform_conv_backward(input, weight, bias, ones, offset, mask, columns, grad_input, grad_weight, grad_bias,
                                   grad_offset, grad_mask, grad_output, **kwargs):
    """Add the gradients of all five inputs."""
    _modulate(grad_output.shape[2:], [input, weight, offset, mask, bias],
              [grad_input, grad_weight, grad_offset, grad_mask, grad_bias], grad_output, **kwargs)


def _modulate(size, inputs, grads=(), grad_output=None, *, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w,
              dilation_h, dilation_w, group, deformable_group, with_bias):
    if not with_bias:
        inputs[4], grads = None, [*grads[:4], None]
    inputs[2:4] = (_first(one, size) for one in inputs[2:4])
    return _convolve(inputs, grads, grad_output, geometry=(
        stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, group, deformable_group))


def _first(one, size):
    """Return offsets or factors for an output of this height and width.

    Those of DyHead are of a larger level. mmcv reads them from the start of each image's memory.
    """
    used = one.shape[1] * math.prod(size)
    return one.flatten(1)[:, :used].unflatten(1, (-1, *size)) if one[0].numel() > used else one


def _convolve(inputs, grads=(), grad_output=None, *, geometry):
    """Return the output, or for one's gradient add those of input, weight, offset, mask and bias to ``grads``."""
    input, weight, _, mask, bias = inputs
    masked = mask is not None
    inputs[3] = mask if masked else input.new_zeros(len(input), 1)
    inputs[4] = input.new_zeros(len(weight)) if bias is None else bias
    if grad_output is None:
        return torch.ops.torchvision.deform_conv2d(*map(single, inputs), *geometry, masked)
    device = summing_device(grad_output)
    found = torch.ops.torchvision._deform_conv2d_backward(
        *(single(one).to(device) for one in (grad_output, *inputs)), *geometry, masked)
    for grad, one in zip(grads, found, strict=True):
        if grad is not None:
            if one.shape != grad.shape:  # of offsets whose rest was not read
                one = F.pad(one.flatten(1), (0, grad[0].numel() - one[0].numel())).view(grad.shape)
            grad += one.to(grad.device)


def masked_im2col_forward(features, mask_h_idx, mask_w_idx, data_col, kernel_h, kernel_w, pad_h, pad_w):
    """Write the patches of (1, C, H, W) around the chosen pixels into ``data_col`` (C * kernel_h * kernel_w, N)."""
    columns = F.unfold(features, (kernel_h, kernel_w), padding=(pad_h, pad_w))[0]
    out_width = features.shape[3] + 2 * pad_w - kernel_w + 1
    data_col.copy_(columns[:, mask_h_idx * out_width + mask_w_idx])


def masked_col2im_forward(data_col, mask_h_idx, mask_w_idx, output, height, width, channels):
    """Write columns (C, N) into the chosen pixels of ``output`` (1, C, H, W)."""
    output[0, :, mask_h_idx, mask_w_idx] = data_col


# Attention and content


def ms_deform_attn_forward(value, spatial_shapes, level_start, sampling_locations, attention_weights, im2col_step):
    """Return multi-scale deformable attention (B, Q, heads * d) (Zhu et al. 2021, Eq. 3).

    Args:
        value: (B, S, heads, d), the S tokens of all levels one after the other.
        spatial_shapes: (L, 2), height and width of each level.
        sampling_locations: (B, Q, heads, L, P, 2), x and y of the P points in each level, 0 to 1.
        attention_weights: (B, Q, heads, L, P).
    """
    return _deform_attn(value, sampling_locations, attention_weights, spatial_shapes.tolist())


def ms_deform_attn_backward(value, spatial_shapes, level_start, sampling_locations, attention_weights, grad_output,
                            grad_value, grad_locations, grad_weights, im2col_step):
    """Add the gradients of values, locations and weights."""
    shapes = spatial_shapes.tolist()
    add_gradients([grad_value, grad_locations, grad_weights], lambda *inputs: _deform_attn(*inputs, shapes),
                  [value, sampling_locations, attention_weights], grad_output)


def _deform_attn(value, locations, weights, shapes):
    batch, _, heads, width = value.shape
    queries, points, total = locations.shape[1], locations.shape[4], 0
    for level, tokens in enumerate(value.split([h * w for h, w in shapes], 1)):
        maps = tokens.permute(0, 2, 3, 1).reshape(batch * heads, width, *shapes[level])
        grid = 2 * single(locations[:, :, :, level]).transpose(1, 2).flatten(0, 1) - 1
        found = F.grid_sample(single(maps), grid, align_corners=False)  # (B * heads, d, Q, P)
        weight = weights[:, :, :, level].transpose(1, 2).reshape(batch * heads, 1, queries, points)
        total = total + (found * weight).sum(-1)  # a level at a time: the samples of all would be the largest tensor
    return total.view(batch, heads * width, queries).transpose(1, 2).to(value.dtype)


def carafe_naive_forward(features, masks, output, **kwargs):
    """Write (B, C, H, W), upsampled with a kernel for each output pixel, into ``output`` (Wang et al. 2019).

    The kernels are ``masks`` (B, group_size * kernel_size**2, H * scale_factor, W * scale_factor).
    """
    output.copy_(_carafe(features, masks, **kwargs))


def carafe_forward(features, masks, rfeatures, routput, rmasks, output, **kwargs):
    """Write as above; ``rfeatures`` is what the backward pass gets."""
    rfeatures.copy_(features)
    carafe_naive_forward(features, masks, output, **kwargs)


def carafe_naive_backward(grad_output, features, masks, grad_input, grad_masks, **kwargs):
    """Add the gradients of features and masks."""
    add_gradients([grad_input, grad_masks], lambda *inputs: _carafe(*inputs, **kwargs), [features, masks], grad_output)


def carafe_backward(grad_output, rfeatures, masks, rgrad_output, rgrad_input_hs, rgrad_input, rgrad_masks, grad_input,
                    grad_masks, **kwargs):
    """Add the gradients of features and masks."""
    carafe_naive_backward(grad_output, rfeatures, masks, grad_input, grad_masks, **kwargs)


def _carafe(features, masks, kernel_size, group_size, scale_factor):
    batch, channels, height, width = features.shape
    padded = F.pad(single(features), [kernel_size // 2] * 4).unflatten(1, (group_size, -1))[..., None, None]
    kernels = masks.reshape(batch, group_size, kernel_size**2, 1, height, scale_factor, width, scale_factor)
    total = 0
    for step in range(kernel_size**2):  # (B, groups, C / groups, H, W, scale, scale)
        row, column = divmod(step, kernel_size)
        total = total + (padded[:, :, :, row:row + height, column:column + width]
                         * kernels.transpose(-2, -3)[:, :, step])
    return total.transpose(-2, -3).reshape(batch, channels, *masks.shape[2:]).to(features.dtype)


def psamask_forward(input, output, **kwargs):
    """Write the attention masks of PSANet into ``output`` (B, H * W, H, W) (Zhao et al. 2018).

    Args:
        input: (B, h_mask * w_mask, H, W), for each pixel the weights of a window around it.
        psa_type: 0 for the weights that a pixel collects, 1 for those that it distributes.
    """
    output.copy_(_psa_mask(input, **kwargs))


def psamask_backward(grad_output, grad_input, **kwargs):
    """Add the gradient of the input."""
    add_gradients([grad_input], lambda one: _psa_mask(one, **kwargs), [grad_input], grad_output)


def _psa_mask(input, psa_type, num_, h_feature, w_feature, h_mask, w_mask, half_h_mask, half_w_mask):
    places = []
    for length, window, half in ((h_feature, h_mask, half_h_mask), (w_feature, w_mask, half_w_mask)):
        steps = torch.arange(length, device=input.device)
        place = steps[:, None] - steps + half  # in the window of pixel [:, i], where pixel [j] lies
        places.append((place.clamp(0, window - 1), (place >= 0) & (place < window)))
    (rows, rows_in), (columns, columns_in) = places
    place = rows[:, None, :, None] * w_mask + columns[None, :, None]  # (H, W) of the other, then (H, W) of the pixel
    inside = rows_in[:, None, :, None] & columns_in[None, :, None]
    found = input.gather(1, place.flatten(0, 1).expand(num_, -1, -1, -1)) * inside.flatten(0, 1)
    if psa_type == 1:
        found = found.flatten(2).transpose(1, 2).reshape_as(found)
    return found


def sigmoid_focal_loss_forward(input, target, weight, output, gamma, alpha):
    """Write the focal loss of logits (N, C) into ``output`` (N, C).

    Args:
        target: (N, ), the class of each row; C is the background.
        weight: (C, ), a factor for the rows of each class, or empty.
    """
    output.copy_(_focal_loss(input, target, weight, gamma, alpha))


def sigmoid_focal_loss_backward(input, target, weight, grad_input, gamma, alpha):
    """Add the derivative of each loss by its logit to ``grad_input`` (N, C)."""
    add_gradients([grad_input], lambda logits: _focal_loss(logits, target, weight, gamma, alpha), [input],
                  torch.ones_like(input))


def _focal_loss(logits, target, weight, gamma, alpha):
    from torchvision.ops import sigmoid_focal_loss
    classes, target = logits.shape[1], target.to(logits.device)
    one_hot = F.one_hot(target, classes + 1)[:, :classes]
    # half types: logarithms and powers in float32
    loss = sigmoid_focal_loss(single(logits), one_hot.to(single(logits)), alpha, gamma)
    if weight.numel():  # the background has none
        loss = loss * torch.cat([weight, weight.new_ones(1)])[target, None]
    return loss
